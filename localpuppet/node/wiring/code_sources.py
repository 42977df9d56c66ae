"""Builds what brings code onto a node: git, the forge, the content store, manifests and locks.

    sources = CodeSources(node)
    with sources.repository("locking") as repository:
        ...

One command has one `CodeSources`: a fetch from the forge is counted below the title of the
repository that is in use.
"""

from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.node.wiring.node import NodeWiring, program_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from localpuppet.base.machine.ports import Progress
    from localpuppet.node.releases.fetch import Supply
    from localpuppet.node.releases.forge.archive import ModuleForge
    from localpuppet.node.releases.git.mirrors import Git
    from localpuppet.node.releases.git.program import GitProgram
    from localpuppet.node.releases.git.work_tree import Ignored
    from localpuppet.node.releases.release_files import ReleaseFiles
    from localpuppet.node.releases.store import Store


class CodeSources:
    """The places that code comes from, for one command.

    Args:
        node: The parts of the node.
    """

    _public = False

    def __init__(self, node: NodeWiring) -> None:
        self._node = node
        self._shown: Progress | None = None  # shows progress of fetches

    @cached_property
    def store(self) -> "Store":
        """The content store."""
        from localpuppet.node.releases.store import Store

        return Store(self._node.settings.state, note=self._node.observe("").note)

    @cached_property
    def files(self) -> "ReleaseFiles":
        """The reader of manifests and locks."""
        from localpuppet.node.releases.release_files import ReleaseFiles

        settings = self._node.settings
        return ReleaseFiles(
            documents=self._node.documents,
            allow_file=settings.allow_file_urls,
            tags_only=settings.tags_only,
            basemodulepath=settings.basemodulepath,
        )

    @cached_property
    def supply(self) -> "Supply":
        """The provider of code."""
        from localpuppet.node.releases.fetch import Supply

        return Supply(
            store=self.store,
            sources=self._node.settings.sources,
            files=self.files,
            forge=self.forge,
        )

    def git(self, progress: "Callable[[int, int], None] | None" = None) -> "Git":
        """Return git, with `progress` called for fetches."""
        from localpuppet.node.releases.git.access import rewrite_url
        from localpuppet.node.releases.git.mirrors import PLACE, Git
        from localpuppet.node.releases.git.program import GitProgram
        from localpuppet.node.releases.limits import GitLimits
        from localpuppet.node.wiring.forge import find_access

        settings = self._node.settings
        return Git(
            settings.state / PLACE,
            GitProgram(
                env=program_environment(),
                allow_file=settings.allow_file_urls,
                timeout=settings.git_timeout,
                address=lambda url: rewrite_url(url, settings.rewrite),
                access=lambda address: find_access(settings, address),
                limits=GitLimits(min_free=settings.min_free),
            ),
            progress=progress or (lambda _done, _all: None),
            names={source.url: name for name, source in settings.sources.items()},
        )

    @contextmanager
    def repository(self, title: str) -> "Iterator[Git]":
        """Yield git, and show the progress of its fetches under a title."""
        progress = self._node.observe(title)
        progress.begin()
        before, self._shown = self._shown, progress
        try:
            yield self.git(self.counted("repositories"))
        finally:
            self._shown = before
            progress.close()

    def counted(self, things: str) -> "Callable[[int, int], None]":
        """Return a callback that shows how many things are done, while `repository` is in use."""

        def count(done: int, total: int) -> None:
            if self._shown is not None:
                self._shown.count(done, total, things)

        return count

    def forge(self) -> "ModuleForge":
        """Return the forge of the site.

        Raises:
            InvalidInputError: The file of its token, or its CA, cannot be read.
        """
        from localpuppet.node.wiring.forge import site_forge

        return site_forge(
            self._node, progress=self.counted("modules of the forge"), public=self._public
        )

    def local_git(self) -> "GitProgram":
        """Return git for repositories on this machine."""
        from localpuppet.node.releases.git.program import GitProgram

        timeout = self._node.settings.git_timeout
        return GitProgram(env=program_environment(), allow_file=False, timeout=timeout)

    def ignored(self, directory: Path) -> "Ignored":
        """Return what git ignores in a work tree.

        Raises:
            InvalidInputError: The repository cannot be read.
            UnavailableError: git reached the timeout.
            StateError: git is not installed.
        """
        from localpuppet.node.releases.git.work_tree import ignored

        return ignored(self.local_git(), directory)


class PublicSources(CodeSources):
    """The places of public code, as everybody reaches them: see `PublicAccess`."""

    _public = True

    def git(self, progress: "Callable[[int, int], None] | None" = None) -> "Git":
        """Return git for public code, with separate mirrors."""
        from localpuppet.node.releases.git.access import rewrite_url
        from localpuppet.node.releases.git.mirrors import PLACE, Git
        from localpuppet.node.releases.git.public import public_git
        from localpuppet.node.releases.limits import GitLimits

        settings = self._node.settings
        program = public_git(
            env=program_environment(),
            address=lambda url: rewrite_url(url, settings.rewrite),
            timeout=settings.git_timeout,
            patience=settings.https_timeout,
            limits=GitLimits(min_free=settings.min_free),
        )
        progress = progress or (lambda _done, _all: None)
        return Git(settings.state / PLACE, program, progress=progress, kind="public ")
