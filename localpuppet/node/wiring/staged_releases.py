"""Packages and removes staged releases: one function for each command."""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.node.wiring.node import NodeInputs, NodeWiring
from localpuppet.node.wiring.releases import ReleaseWiring
from localpuppet.node.wiring.state import open_good_runs, open_records

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
