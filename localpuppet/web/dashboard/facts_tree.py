"""The facts of a node as a searchable tree, cut to a limit."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from localpuppet.base.formats.text import shortened
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.summary import text_of
from localpuppet.node.enc.instance.facts import is_legacy_fact

# Values in a page; a node may say a hundred thousand.
MAX_LEAVES = 2000
MAX_VALUE = 400
MAX_KEY = 120
MAX_DEPTH = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """A fact.

    Attributes:
        key: Its name below its parent.
        path: Its dotted path.
        text: Its value; empty if it has parts.
        parts: The branches below it.
    """

    key: str
    path: str
    text: str = ""
    parts: tuple["Branch", ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """Facts.

    Attributes:
        branches: The first level, without legacy facts.
        legacy: The facts that Facter hides by default: structured facts have their values.
        shown: The number of values in the tree.
        left_out: Whether values are omitted.
    """

    branches: tuple[Branch, ...]
    legacy: tuple[Branch, ...]
    shown: int
    left_out: bool


class _Room:
    def __init__(self) -> None:
        self.left = MAX_LEAVES
        self.full = False


def tree_of(facts: Mapping[str, Json], wanted: str = "") -> Tree:
    """Return facts as a tree.

    Args:
        facts: The facts as Facter returns them.
        wanted: A search text; the tree has only facts whose path or value contains it, in any case.
    """
    room = _Room()
    # Structured facts come first: the limit cuts legacy ones.
    parts: tuple[dict[str, Json], dict[str, Json]] = {}, {}
    for name, value in facts.items():
        parts[is_legacy_fact(name)][name] = value
    branches, legacy = (tuple(_branches(part, "", wanted.lower(), room, 0)) for part in parts)
    return Tree(branches=branches, legacy=legacy, shown=MAX_LEAVES - room.left, left_out=room.full)


def _branches(
    facts: Mapping[str, Json], place: str, wanted: str, room: _Room, depth: int
) -> Iterator[Branch]:
    for key in sorted(facts):
        value = facts[key]
        name, path = shortened(key, MAX_KEY), f"{place}{key}"
        if isinstance(value, dict) and value and depth < MAX_DEPTH:
            parts = tuple(_branches(value, f"{path}.", wanted, room, depth + 1))
            if parts:
                yield Branch(key=name, path=shortened(path, MAX_VALUE), parts=parts)
            continue
        text = text_of(value)
        if wanted and wanted not in path.lower() and wanted not in text.lower():
            continue
        if not room.left:
            room.full = True
            return
        room.left -= 1
        yield Branch(key=name, path=shortened(path, MAX_VALUE), text=shortened(text, MAX_VALUE))
