"""Builds what brings code onto a node: git, the forge, stores, manifests, branches, work trees.

    sources = CodeSources(node)
    with sources.repository("locking") as repository:
        ...

One command has one `CodeSources`: a fetch from the forge is counted below the title of the
repository that is in use.
"""

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.machine.files import read_user_file
from localpuppet.node.releases.git.access import (
    GitAccess,
    access_for,
    check_credentials,
    rewrite_url,
)
from localpuppet.node.wiring.node import NodeWiring, program_environment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from localpuppet.base.formats.names import ReleasePath
    from localpuppet.base.machine.ports import Progress
    from localpuppet.node.releases.branches import BranchStaging, LockedModules, TrunkStaging
    from localpuppet.node.releases.fetch import Supply
    from localpuppet.node.releases.forge.archive import ModuleForge
    from localpuppet.node.releases.git.mirrors import Git
    from localpuppet.node.releases.git.program import GitProgram
    from localpuppet.node.releases.git.work_tree import Ignored
    from localpuppet.node.releases.manifest import Lock
    from localpuppet.node.releases.release import Release
    from localpuppet.node.releases.release_files import ReleaseFiles
    from localpuppet.node.releases.store import Store
    from localpuppet.node.settings.node import Settings


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


MAX_TOKEN = 4096


def site_forge(
    node: NodeWiring, *, progress: Callable[[int, int], None], public: bool = False
) -> "ModuleForge":
    """Return the forge of the site: a directory of archives, or a server.

    Args:
        node: The parts of the node.
        progress: Called with the numbers of fetched and of all documents or archives.
        public: Whether to ask a server as everybody can: directly, and without a token.

    Raises:
        InvalidInputError: The file of its token, or its CA, cannot be read.
    """
    from localpuppet.node.releases.forge.archive import PLACE

    settings = node.settings
    forge = settings.forge
    if forge.url.startswith("file:") and not public:
        from localpuppet.node.releases.forge.client import DirectoryForge

        return DirectoryForge(
            Path(unquote(urlsplit(forge.url).path)), scratch=settings.state / PLACE
        )
    from localpuppet.node.releases.forge.client import Forge, Transfer

    transfer = Transfer(
        url=forge.url,
        ca=forge.ca,
        proxy=forge.proxy,
        token=_token(forge.token_file) if forge.token_file and not public else "",
        timeout=settings.https_timeout,
        total=settings.git_timeout,
        public=public,
    )
    return Forge(transfer=transfer, cache=settings.state / PLACE, progress=progress)


def _token(file: Path) -> str:
    token = read_user_file(file).decode("utf-8", "replace").strip()
    if not token or len(token) > MAX_TOKEN or not token.isascii() or not token.isprintable():
        raise InvalidInputError("is not a token: one line of ASCII", where=str(file))
    return token


def find_access(settings: "Settings", address: str) -> GitAccess:
    """Return the access settings for an address, with checked credentials.

    Raises:
        InvalidInputError: The credentials file is invalid.
    """
    sources = settings.sources.values()
    access = access_for(
        address, {rewrite_url(source.url, settings.rewrite): source.access for source in sources}
    )
    if access.credentials is not None:
        check_credentials(read_user_file(access.credentials), where=str(access.credentials))
    return access


class MutableCode:
    """Branches, `trunk` and work trees of a node.

    Args:
        node: The parts of the node.
        sources: The places that their modules come from.
    """

    def __init__(self, node: NodeWiring, sources: CodeSources) -> None:
        self._node = node
        self._sources = sources

    def is_branch(self, path: "ReleasePath") -> bool:
        """Return whether a release is a branch of a source, and not a directory of that name.

        Raises:
            InvalidInputError: The release is a branch, and the site allows only tags.
        """
        settings = self._node.settings
        declared = path.source in settings.sources
        is_branch = path.is_branch and (declared or not (settings.modules / path).is_dir())
        if is_branch and settings.immutable_only:
            raise InvalidInputError(
                f"{path} can change, and 'immutable_only' is set", where="app", hint="name a tag"
            )
        return is_branch

    def stage(self, path: "ReleasePath") -> None:
        """Stage the current commit of a branch, or the modules of trunk.

        Raises:
            LocalpuppetError: The code is invalid, or cannot be fetched.
        """
        if self.is_branch(path):
            self.branch_staging().stage_or_stay(path, self._node.observe("").note)
        else:
            self.trunk_staging().stage(path)

    def branch_staging(self) -> "BranchStaging":
        """Return the staging of branches."""
        from localpuppet.node.releases.branches import BranchStaging

        return BranchStaging(
            modules=self._node.settings.modules,
            supply=self._sources.supply,
            locked=self._locked_modules(),
            repository=self._sources.repository,
        )

    def trunk_staging(self) -> "TrunkStaging":
        """Return the staging of `trunk`'s modules."""
        from localpuppet.node.releases.branches import TrunkStaging

        modules = self._node.settings.modules
        return TrunkStaging(modules=modules, files=self._sources.files, locked=self._locked_modules)

    def work_tree(
        self,
        directory: Path,
        name: str | None = None,
        *,
        work_trees: bool = True,
        warn: Callable[[str], None] | None = None,
        base: "Lock | None" = None,
    ) -> "Release":
        """Return the code of a work tree, with its modules; see `WorkTrees.release`.

        Args:
            directory: The top of the work tree.
            name: The name of the release; by default that of the directory.
            work_trees: Whether its lock may name work trees of modules on this machine.
            warn: Takes the warnings; by default they are notes.
            base: The lock of the base, if the code is not trusted: see `UntrustedModules`.

        Raises:
            LocalpuppetError: The work tree is invalid, or a module cannot be fetched.
        """
        from localpuppet.node.releases.branches import WorkTrees

        trees = WorkTrees(
            state=self._node.settings.state,
            files=self._sources.files,
            modules=self._locked_modules() if base is None else self._untrusted_modules(base),
            ignored=self._sources.ignored,
            warn=warn or (lambda text: self._node.observe("").note(f"warning: {text}")),
        )
        return trees.release(directory, name, work_trees=work_trees)

    def _locked_modules(self) -> "LockedModules":
        from localpuppet.node.releases.branches import LockedModules

        return LockedModules(supply=self._sources.supply, repository=self._sources.repository)

    def _untrusted_modules(self, base: "Lock") -> "LockedModules":
        from localpuppet.node.releases.branches import CodeSupply, UntrustedModules
        from localpuppet.node.releases.manifest import ForgePin

        settings, own = self._node.settings, self._sources
        public = PublicSources(self._node)
        supply = replace(own.supply, proves=True)
        return UntrustedModules(
            supply=own.supply,
            repository=own.repository,
            base=frozenset(base.pins.values()),
            named=frozenset(source.url for source in settings.sources.values()),
            known=CodeSupply(supply=supply, repository=own.repository),
            public=CodeSupply(
                supply=replace(supply, forge=public.forge), repository=public.repository
            ),
            address=lambda pin: (
                settings.forge.url
                if isinstance(pin, ForgePin)
                else rewrite_url(pin.url, settings.rewrite)
            ),
            hosts=settings.preview_hosts,
        )
