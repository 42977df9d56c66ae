"""Packages and removes staged releases: one function for each command."""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.node.wiring.node import NodeWiring
from localpuppet.node.wiring.releases import ReleaseWiring

if TYPE_CHECKING:
    from localpuppet.base.formats.names import ReleasePath
    from localpuppet.node.releases.garbage import GarbageCollector, Removal
    from localpuppet.node.releases.packages.building import BuiltPackage


def build_package(
    node: NodeWiring, path: "ReleasePath", *, form: str, directory: Path, version: str | None
) -> "BuiltPackage":
    """Build a package of a release, which is staged first if necessary; see `Packager.build`.

    Raises:
        LocalpuppetError: The release cannot be staged, or the package cannot be built.
    """
    from localpuppet.node.releases.packages.building import Packager

    releases = ReleaseWiring(node)
    with releases.repository(f"packaging {path}") as repository:
        staged = releases.package_staging(repository).stage(path)
        packager = Packager(
            staging=releases.staging(repository),
            store=releases.store,
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
    garbage = _garbage_collector(node, releases)
    with ExitStack() as locks:
        locks.callback(releases.store.exclusively().release)
        if not dry_run:
            locks.callback(releases.store.unneeded().release)
        removal = garbage.plan(releases.named_apps(), now=node.clock.now().timestamp())
        if not dry_run:
            garbage.remove(removal)
    return removal


def _garbage_collector(node: NodeWiring, releases: ReleaseWiring) -> "GarbageCollector":
    from localpuppet.node.releases.garbage import GarbageCollector
    from localpuppet.node.releases.git.kept_mirrors import KeptMirrors

    settings = node.settings
    sources = [source.url for source in settings.sources.values()]
    return GarbageCollector(
        staging=releases.staging(releases.git()),
        ledger=node.ledger,
        good=node.good_runs.releases,
        in_use=node.records.in_use,
        interfaces=releases.interfaces,
        mirrors=KeptMirrors(settings.state, sources),
        keep_staged=settings.keep_staged,
    )
