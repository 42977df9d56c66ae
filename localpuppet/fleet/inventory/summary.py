"""Summarise entries for people: count the values of a fact, and list facts as lines."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping

from localpuppet.base.formats.strict_json import loads_again
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.query.evaluating import Evaluation
from localpuppet.fleet.inventory.query.tree import Entity, Field, Select, parse_step
from localpuppet.fleet.inventory.reading import InventoryReader
from localpuppet.fleet.inventory.tables import ROLE

# Shown for a missing fact.
NOTHING = "-"


def counts(reader: InventoryReader, path: str) -> list[tuple[str, int]]:
    """Return each value of a fact with its number of nodes, the most frequent first.

    The path is dotted, or `role`, where a node counts once for each of its roles.
    """
    counter: Counter[str] = Counter()
    if path == ROLE:
        for node in reader.nodes():
            counter.update(node.roles or (NOTHING,))
    else:
        first, *rest = path.split(".")
        columns = (Field(column="facts", path=(first, *map(parse_step, rest))),)
        for (text,) in Evaluation(reader).table(Select(entity=Entity.INVENTORY, columns=columns)):
            counter[text_of(loads_again(text.encode()))] += 1
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
