"""The position of a watcher of the SQLite bus, and the changes found from there."""

from localpuppet.base.value import Value
from localpuppet.fleet.bus.key_value import Change


class Position(Value):
    """The position of a watcher.

    Attributes:
        after: The last revision that it has seen.
        largest: Maximum bytes of a value of interest.
        parts: Whether listings may come in parts.
        key: The last key of an incomplete listing; empty otherwise.
    """

    after: int
    largest: int
    parts: bool = False
    key: str = ""


class WatchSnapshot(Value):
    """The changes that a watcher finds in one look.

    Attributes:
        changes: The next changes, sorted by revision.
        position: The position for the next look.
        more: Whether there are more changes already.
    """

    changes: tuple[Change, ...]
    position: Position
    more: bool
