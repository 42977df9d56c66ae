"""Cycles that a node is about to close: those that what it says now brings about."""

from collections.abc import Callable
from dataclasses import replace

from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.reading import InventoryReader
from localpuppet.fleet.roles.cycles import Cycle
from localpuppet.fleet.roles.links import links_of
from localpuppet.fleet.roles.readers import SubstitutedReader
from localpuppet.fleet.roles.relations import Relations, relations, role_of


def asks_the_same(before: InventoryEntry, now: InventoryEntry) -> bool:
    """Return whether two entries of a node kick and ask the same, and are for the same."""
    return _asked(before) == _asked(now)


def closed_cycles(
    reader: InventoryReader,
    before: InventoryEntry | None,
    now: InventoryEntry,
    enough: Callable[[], bool] = lambda: False,
) -> list[Cycle]:
    """Return the cycles that an entry closes.

    Args:
        reader: The inventory; whichever of the two entries it holds, or none.
        before: What the node said before; `None` for nothing.
        now: What it says now.
        enough: Whether to look no further; cycles may be missing then.

    Raises:
        StateError: The inventory cannot be read.
    """
    mine = role_of(now.node, now.roles)
    cycles = [
        one for one in _relations(SubstitutedReader(reader, now), enough).cycles if mine in one.path
    ]
    if not cycles:
        return []
    silent = replace(now, kicks=(), queries=(), paths=())
    known = {
        one.path for one in _relations(SubstitutedReader(reader, before or silent), enough).cycles
    }
    if enough():  # what was there before may be missing, too, and would pass for new
        return []
    return [one for one in cycles if one.path not in known]


def _relations(reader: InventoryReader, enough: Callable[[], bool]) -> Relations:
    return relations(links_of(reader, enough))


def _asked(entry: InventoryEntry) -> object:
    return entry.roles, set(entry.kicks), {query.text for query in entry.queries}
