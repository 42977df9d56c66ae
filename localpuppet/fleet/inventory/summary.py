"""Summarise entries for people: count the values of a fact, and list facts as lines."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.entry_brief import InventoryNode
from localpuppet.fleet.inventory.index import ROLE
from localpuppet.fleet.inventory.query.node_facts import PackedFacts
from localpuppet.fleet.inventory.query.tree import parse_step

# Shown for a missing fact.
NOTHING = "-"


def counts(nodes: Iterable[InventoryNode], path: str) -> list[tuple[str, int]]:
    """Return each value of a fact with its number of nodes, the most frequent first.

    Args:
        nodes: The nodes.
        path: A dotted fact path (legacy names included, as in queries), or `role`, where a node
            counts once for each of its roles.
    """
    first, *rest = path.split(".")
    steps = (first, *map(parse_step, rest))
    counter: Counter[str] = Counter()
    for known in nodes:
        if path == ROLE:
            counter.update(known.roles or (NOTHING,))
        else:
            counter[text_of(PackedFacts(known).at(steps))] += 1
    return sorted(counter.items(), key=lambda pair: (-pair[1], pair[0]))


def lines(facts: Mapping[str, Json], place: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted path and the text of each fact that is not a mapping, sorted."""
    for key in sorted(facts):
        value = facts[key]
        if isinstance(value, dict) and value:
            yield from lines(value, f"{place}{key}.")
        else:
            yield f"{place}{key}", text_of(value)


def text_of(value: Json) -> str:
    """Return a fact as text; `NOTHING` for a missing fact."""
    if value is None:
        return NOTHING
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
