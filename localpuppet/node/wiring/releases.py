"""Builds the parts that bring releases onto a node: git, store, staging, parser."""

from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.base.errors import InvalidInputError, PuppetMissingError
from localpuppet.base.share.files import shared_file
from localpuppet.node.releases.store import Store
from localpuppet.node.wiring.node import NodeWiring

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from localpuppet.base.formats.names import ReleasePath
    from localpuppet.base.machine.ports import Progress
    from localpuppet.node.puppet.installation import Installation
    from localpuppet.node.releases.forge.ports import ModuleForge
    from localpuppet.node.releases.git.ignored import Ignored
    from localpuppet.node.releases.git.mirrors import Git
    from localpuppet.node.releases.git.program import GitProgram
    from localpuppet.node.releases.git.repository import Repository
    from localpuppet.node.releases.interfaces import Parser
    from localpuppet.node.releases.mutable.branches import BranchStaging
    from localpuppet.node.releases.mutable.modules import LockedModules
    from localpuppet.node.releases.mutable.trunk import TrunkStaging
    from localpuppet.node.releases.mutable.work_tree import WorkTrees
    from localpuppet.node.releases.packages.staging import PackageStaging
    from localpuppet.node.releases.packages.tools import SystemPackageTools
    from localpuppet.node.releases.provider import ReleaseProvider
    from localpuppet.node.releases.reading import InterfaceReader
    from localpuppet.node.releases.release import Release
    from localpuppet.node.releases.release_files import ReleaseFiles
    from localpuppet.node.releases.staging import Approve, ReleaseStaging
    from localpuppet.node.releases.supply import Supply

# Types, functions and classes that every run finds after the release's.
OWN_MODULES = shared_file("modules/localpuppet")


class ReleaseWiring:
    """The parts for releases on a node.

    Args:
        node: The parts of the node.
    """

    def __init__(self, node: NodeWiring) -> None:
        self._node = node
        self._shown: Progress | None = None  # shows progress of fetches

    @cached_property
    def store(self) -> Store:
        """The content store."""
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

    def resolve(self, path: "ReleasePath") -> "Release":
        """Return a release that is on this node.

        Raises:
            InvalidInputError: The release is invalid or missing.
            IntegrityError: A tag requires verification and is not verified.
        """
        from localpuppet.node.releases.release import resolve

        settings = self._node.settings
        if self.is_branch(path):
            return self.branch_staging().release(path)
        return resolve(
            path,
            modules=settings.modules,
            store=settings.state,
            files=self.files,
            sources=settings.sources,
            immutable_only=settings.immutable_only,
        )

    def git(self, progress: "Callable[[int, int], None] | None" = None) -> "Git":
        """Return git, with `progress` called for fetches."""
        from localpuppet.node.releases.git.access import rewrite_url
        from localpuppet.node.releases.git.limits import GitLimits
        from localpuppet.node.releases.git.mirror import PLACE
        from localpuppet.node.releases.git.mirrors import Git
        from localpuppet.node.releases.git.program import GitProgram
        from localpuppet.node.wiring.forge import find_access

        settings = self._node.settings
        return Git(
            settings.state / PLACE,
            GitProgram(
                env=self._node.environment,
                allow_file=settings.allow_file_urls,
                timeout=settings.git_timeout,
                address=lambda url: rewrite_url(url, settings.rewrite),
                access=lambda address: find_access(settings, address),
                limits=GitLimits(min_free=settings.min_free),
            ),
            progress=progress or (lambda _done, _all: None),
            names={source.url: name for name, source in settings.sources.items()},
        )

    def ignored(self, directory: Path) -> "Ignored":
        """Return what git ignores in a work tree.

        Raises:
            InvalidInputError: The repository cannot be read.
            UnavailableError: git reached the timeout.
            StateError: git is not installed.
        """
        from localpuppet.node.releases.git.ignored import ignored

        return ignored(self.local_git(), directory)

    def local_git(self) -> "GitProgram":
        """Return git for repositories on this machine."""
        from localpuppet.node.releases.git.program import GitProgram

        timeout = self._node.settings.git_timeout
        return GitProgram(env=self._node.environment, allow_file=False, timeout=timeout)

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

        return site_forge(self._node, progress=self.counted("modules of the forge"))

    @cached_property
    def supply(self) -> "Supply":
        """The provider of code."""
        from localpuppet.node.releases.supply import Supply

        return Supply(
            store=self.store,
            sources=self._node.settings.sources,
            files=self.files,
            forge=self.forge,
        )

    def staging(
        self, repository: "Repository", approve: "Approve | None" = None
    ) -> "ReleaseStaging":
        """Return the releases on this node; see `ReleaseStaging` for `approve`."""
        from localpuppet.node.releases.staging import ReleaseStaging

        settings = self._node.settings
        return ReleaseStaging(
            state=settings.state,
            modules=settings.modules,
            supply=self.supply,
            repository=repository,
            approve=approve,
            clock=self._node.clock,
        )

    def package_staging(
        self,
        repository: "Repository",
        approve: "Approve | None" = None,
        *,
        accept_moved: bool = False,
    ) -> "PackageStaging":
        """Return the staging of releases, which first compares a new tag with other nodes'."""
        from localpuppet.node.releases.packages.staging import PackageStaging
        from localpuppet.node.releases.staging import compare_first

        manager = self._node.settings.install_packages
        if not accept_moved:
            approve = compare_first(self._node.neighbours.compare_tag, approve)
        return PackageStaging(
            staging=self.staging(repository, approve),
            supply=self.supply,
            directories=self._node.settings.packages,
            install=None
            if manager is None
            else lambda name: self.package_tools().install_by_name(name, manager),
        )

    @contextmanager
    def _lent_staging(self, title: str, approve: "Approve") -> "Iterator[PackageStaging]":
        with self.repository(title) as repository:
            yield self.package_staging(repository, approve)

    def _offered(self, path: "ReleasePath") -> bool:
        """Return whether a source, a package or a pack has a release."""
        from localpuppet.node.releases.packages.directory import find, find_pack

        settings = self._node.settings
        if path.source in settings.sources or find(settings.packages, path) is not None:
            return True
        # What is here already, a link or a directory of the site's own, needs no package manager.
        installable = settings.install_packages is not None
        if installable and not (settings.modules / path).exists():
            return True
        return find_pack(settings.packages, path) is not None

    def locked_modules(self) -> "LockedModules":
        """Return the fetcher of locked modules."""
        from localpuppet.node.releases.mutable.modules import LockedModules

        return LockedModules(supply=self.supply, repository=self.repository)

    def is_branch(self, path: "ReleasePath") -> bool:
        """Return whether a release is a branch of a source, and not a directory of that name.

        Raises:
            InvalidInputError: The release is a branch, and the site allows only tags.
        """
        settings = self._node.settings
        declared = path.source in settings.sources
        found = path.is_branch and (declared or not (settings.modules / path).is_dir())
        if found and settings.immutable_only:
            raise InvalidInputError(
                f"{path} is mutable, and immutable_only is set", where="app", hint="name a tag"
            )
        return found

    def branch_staging(self) -> "BranchStaging":
        """Return the staging of branches."""
        from localpuppet.node.releases.mutable.branches import BranchStaging

        return BranchStaging(
            modules=self._node.settings.modules,
            supply=self.supply,
            locked=self.locked_modules(),
            repository=self.repository,
        )

    def stage_mutable(self, path: "ReleasePath") -> None:
        """Stage mutable code: the current commit of a branch, or the modules of trunk.

        Raises:
            LocalpuppetError: The code is invalid, or cannot be fetched.
        """
        if self.is_branch(path):
            self.branch_staging().stage_or_stay(path, self._node.observe("").note)
        else:
            self.trunk_staging().stage(path)

    def trunk_staging(self) -> "TrunkStaging":
        """Return the staging of `trunk`'s modules."""
        from localpuppet.node.releases.mutable.trunk import TrunkStaging

        modules = self._node.settings.modules
        return TrunkStaging(modules=modules, files=self.files, locked=self.locked_modules)

    def work_trees(self) -> "WorkTrees":
        """Return what prepares work trees for runs."""
        from localpuppet.node.releases.mutable.work_tree import WorkTrees

        state = self._node.settings.state
        return WorkTrees(
            state=state,
            files=self.files,
            modules=self.locked_modules(),
            ignored=self.ignored,
            note=self._node.observe("").note,
        )

    def package_tools(self) -> "SystemPackageTools":
        """Return the programs that build and install packages."""
        from localpuppet.node.releases.packages.tools import SystemPackageTools

        return SystemPackageTools(
            env=self._node.environment, timeout=self._node.settings.git_timeout
        )

    def provider(self) -> "ReleaseProvider":
        """Return the provider of releases."""
        from localpuppet.node.releases.provider import ReleaseProvider

        return ReleaseProvider(
            offered=self._offered,
            resolve=self.resolve,
            staging=self._lent_staging,
            tools=self.package_tools,
            reader=self.reader,
            mutable=None if self._node.settings.immutable_only else self.stage_mutable,
        )

    def parser(self, installation: "Installation") -> "Parser":
        """Return the parser of the installed Puppet.

        Raises:
            PuppetMissingError: Its interpreter is missing.
        """
        from localpuppet.node.puppet.installation import find_ruby
        from localpuppet.node.releases.interfaces import Parser

        env = self._node.environment
        ruby = find_ruby(Path(installation.command), env["PATH"])
        if ruby is None:
            raise PuppetMissingError(
                "its Ruby was not found beside it, in its first line or in PATH",
                where=installation.command,
            )
        return Parser(
            ruby=ruby,
            script=shared_file("interface.rb"),
            own_modules=OWN_MODULES,
            env=env,
            version=installation.version,
            processes=self._node.processes,
        )

    def reader(self) -> "InterfaceReader":
        """Return the reader of interfaces."""
        from localpuppet.node.releases.interfaces import Interfaces
        from localpuppet.node.releases.reading import InterfaceReader

        return InterfaceReader(
            Interfaces(self._node.settings.state),
            store=self.store,
            installed=self._node.installed,
            parser=self.parser,
            elsewhere=partial(elsewhere, self._node),
            observe=self._node.observe,
        )


def elsewhere(node: NodeWiring) -> "tuple[Path, Sequence[Path]]":
    """Return the site manifest and the Hiera files, which add to a release's classes and data."""
    installation = node.installation(ask=True)
    return node.settings.site_manifest, installation.hiera_files if installation else []
