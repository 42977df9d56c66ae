"""Where a watcher of the SQLite bus is, and what it finds from there on."""

from dataclasses import dataclass

from localpuppet.fleet.bus.key_value import Change


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a watcher is.

    Attributes:
        after: The last revision that it was told.
        largest: The bytes of the largest value that it wants to know of.
        parts: Whether listings may come in parts.
        key: The last key that it was told of a listing with further parts; empty for none.
    """

    after: int
    largest: int
    parts: bool = False
    key: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a watcher finds at one moment.

    Attributes:
        changes: The next of them, sorted by revision.
        position: Where to look on from.
        more: Whether there are more already.
    """

    changes: tuple[Change, ...]
    position: Position
    more: bool
