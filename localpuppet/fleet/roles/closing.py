"""Find the cycles that a node's new inventory entry closes."""

from collections.abc import Callable
from dataclasses import replace

from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.reading import InventoryReader
from localpuppet.fleet.roles.links import Cycle, links_of
from localpuppet.fleet.roles.readers import SubstitutedReader
from localpuppet.fleet.roles.relations import Relations, relations, role_of


def asks_the_same(before: InventoryEntry, now: InventoryEntry) -> bool:
    """Return whether two entries of a node have the same roles, kicks and queries."""
    return _asked(before) == _asked(now)


def closed_cycles(
    reader: InventoryReader,
    before: InventoryEntry | None,
    now: InventoryEntry,
    enough: Callable[[], bool] = lambda: False,
) -> list[Cycle]:
    """Return the cycles that a node's new entry closes.

    Args:
        reader: The inventory; it may hold either entry of the node, or none.
        before: The node's previous entry; `None` if it had none.
        now: The node's new entry.
        enough: Returns whether to stop early; cycles may be missing then.
    """
    mine = role_of(now.node, now.roles)
    cycles = [
        cycle
        for cycle in _relations(SubstitutedReader(reader, now), enough).cycles
        if mine in cycle.path
    ]
    if not cycles:
        return []
    silent = replace(now, kicks=(), queries=(), paths=())
    known = {
        cycle.path
        for cycle in _relations(SubstitutedReader(reader, before or silent), enough).cycles
    }
    if enough():  # the previous cycles may be incomplete, and old cycles would count as new
        return []
    return [cycle for cycle in cycles if cycle.path not in known]


def _relations(reader: InventoryReader, enough: Callable[[], bool]) -> Relations:
    return relations(links_of(reader, enough))


def _asked(entry: InventoryEntry) -> object:
    return entry.roles, set(entry.kicks), {query.text for query in entry.queries}
