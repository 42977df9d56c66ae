"""Builds what makes releases ready on a node, and what packages and removes them."""

from contextlib import ExitStack, contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.base.errors import PuppetMissingError
from localpuppet.base.share.files import shared_file
from localpuppet.node.wiring.code_sources import CodeSources
from localpuppet.node.wiring.node import NodeInputs, NodeWiring, program_environment
from localpuppet.node.wiring.state import open_good_runs, open_records

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from localpuppet.base.formats.names import ReleasePath
    from localpuppet.node.puppet.installation import Installation
    from localpuppet.node.releases.garbage import GarbageCollector, Removal
    from localpuppet.node.releases.git.repository import Repository
    from localpuppet.node.releases.interfaces import Parser
    from localpuppet.node.releases.packages.building import BuiltPackage
    from localpuppet.node.releases.packages.staging import PackageStaging
    from localpuppet.node.releases.packages.tools import SystemPackageTools
    from localpuppet.node.releases.provider import ReleaseProvider
    from localpuppet.node.releases.reading import InterfaceReader
    from localpuppet.node.releases.release import Release
    from localpuppet.node.releases.staging import Approve, ReleaseStaging
    from localpuppet.node.wiring.code_sources import MutableCode


# Types, functions and classes that every run finds after the release's.
OWN_MODULES = shared_file("modules/localpuppet")


class ReleaseWiring:
    """The releases of a node, for one command.

    Args:
        node: The parts of the node.

    Attributes:
        sources: The places that their code comes from.
    """

    def __init__(self, node: NodeWiring) -> None:
        self._node = node
        self.sources = CodeSources(node)

    @cached_property
    def mutable(self) -> "MutableCode":
        """Branches, `trunk` and work trees."""
        from localpuppet.node.wiring.code_sources import MutableCode

        return MutableCode(self._node, self.sources)

    def resolve(self, path: "ReleasePath") -> "Release":
        """Return a release that is on this node.

        Raises:
            InvalidInputError: The release is invalid or missing.
            IntegrityError: A tag requires verification and is not verified.
        """
        from localpuppet.node.releases.release import resolve

        settings = self._node.settings
        if path.is_branch and self.mutable.is_branch(path):
            return self.mutable.branch_staging().release(path)
        return resolve(
            path,
            modules=settings.modules,
            store=settings.state,
            files=self.sources.files,
            sources=settings.sources,
            immutable_only=settings.immutable_only,
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
            supply=self.sources.supply,
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
            supply=self.sources.supply,
            directories=self._node.settings.packages,
            install=None
            if manager is None
            else lambda name: self.package_tools().install_by_name(name, manager),
        )

    def _stage_mutable(self, path: "ReleasePath") -> None:
        self.mutable.stage(path)

    @contextmanager
    def _lent_staging(self, title: str, approve: "Approve") -> "Iterator[PackageStaging]":
        with self.sources.repository(title) as repository:
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

    def package_tools(self) -> "SystemPackageTools":
        """Return the programs that build and install packages."""
        from localpuppet.node.releases.packages.tools import SystemPackageTools

        return SystemPackageTools(
            env=program_environment(), timeout=self._node.settings.git_timeout
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
            mutable=None if self._node.settings.immutable_only else self._stage_mutable,
        )

    def parser(self, installation: "Installation") -> "Parser":
        """Return the parser of the installed Puppet.

        Raises:
            PuppetMissingError: Its interpreter is missing.
        """
        from localpuppet.node.releases.interfaces import Parser
        from localpuppet.node.wiring.state import puppet_environment

        env = puppet_environment(self._node, installation)
        ruby = installation.interpreter(env["PATH"])
        if ruby is None:
            raise PuppetMissingError(
                "its Ruby was not found beside it, in its first line or in PATH",
                where=installation.command,
            )
        return Parser(
            ruby=ruby,
            load_path=installation.load_path,
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
        from localpuppet.node.wiring.state import require_puppet

        return InterfaceReader(
            Interfaces(self._node.settings.state),
            store=self.sources.store,
            installed=partial(require_puppet, self._node),
            parser=self.parser,
            elsewhere=partial(elsewhere, self._node),
            observe=self._node.observe,
        )


def elsewhere(node: NodeWiring) -> "tuple[Path, Sequence[Path]]":
    """Return the site manifest and the Hiera files, which add to a release's classes and data."""
    from localpuppet.node.wiring.state import find_puppet

    installation = find_puppet(node, ask=True)
    return node.settings.site_manifest, installation.hiera_files if installation else []


def build_package(
    node: NodeWiring, path: "ReleasePath", *, form: str, directory: Path, version: str | None
) -> "BuiltPackage":
    """Build a package of a release, which is staged first if necessary; see `Packager.build`.

    Raises:
        LocalpuppetError: The release cannot be staged, or the package cannot be built.
    """
    from localpuppet.node.releases.packages.building import Packager

    releases = ReleaseWiring(node)
    with releases.sources.repository(f"packaging {path}") as repository:
        staged = releases.package_staging(repository).stage(path)
        packager = Packager(
            staging=releases.staging(repository),
            store=releases.sources.store,
            repository=repository,
            tools=releases.package_tools(),
            directories=node.settings.packages,
        )
        return packager.build(staged, form=form, directory=directory, version=version)


def remove_unneeded(node: NodeWiring, *, dry_run: bool) -> "Removal":
    """Remove staged releases and trees that no run or rollback needs, and return them.

    Args:
        node: The parts of the node.
        dry_run: Remove nothing.

    Raises:
        BusyError: Another process stages, or a run is being prepared.
        InvalidInputError: An input is invalid, so that its release could not be kept.
    """
    releases = ReleaseWiring(node)
    garbage, store = _garbage_collector(node, releases), releases.sources.store
    with ExitStack() as locks:
        locks.callback(store.locks.take_for_changes().release)
        if not dry_run:
            locks.callback(store.locks.take_for_removal().release)
        removal = garbage.plan(_named_apps(node), now=node.clock.now().timestamp())
        if not dry_run:
            garbage.remove(removal)
    return removal


def _named_apps(node: NodeWiring) -> "list[ReleasePath]":
    """Return the releases that the inputs in the root name, and the assigned one."""
    from localpuppet.node.enc.assignment import AssignedRelease

    settings = node.settings
    inputs = [settings.input, *sorted(settings.inputs.glob("*.yaml"))]
    assigned = AssignedRelease(settings.state).read()
    reader = NodeInputs(node).reader
    named = [reader.app(path) for path in inputs if path.exists()]
    return named if assigned is None else [*named, assigned.release]


def _garbage_collector(node: NodeWiring, releases: ReleaseWiring) -> "GarbageCollector":
    from localpuppet.node.releases.garbage import GarbageCollector
    from localpuppet.node.releases.interfaces import Interfaces
    from localpuppet.node.releases.ledger import Ledger

    settings = node.settings
    return GarbageCollector(
        staging=releases.staging(releases.sources.git()),
        ledger=Ledger(settings.state),
        good=open_good_runs(node).releases,
        in_use=open_records(node).in_use,
        interfaces=Interfaces(settings.state),
        urls=[source.url for source in settings.sources.values()],
        keep_staged=settings.keep_staged,
    )
