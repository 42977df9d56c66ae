"""The days of history on the bus that a follower has yet to read, the newest first."""

from collections.abc import Sequence
from itertools import chain, islice

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.bus.layout import HISTORY
from localpuppet.fleet.history.day import SLOTS, HistoryKind, history_key

# Keys that wait: those of all days of 20,000 nodes. Any client could write more.
MOST = 20_000 * SLOTS * len(HistoryKind)


class HistoryBacklog:
    """Keys of days, by the slot that a day has on the bus.

    Args:
        most: Maximum number of keys.
    """

    def __init__(self, most: int = MOST) -> None:
        self._slots: tuple[dict[str, None], ...] = tuple({} for _ in range(SLOTS))
        self._room = most

    @property
    def days(self) -> int:
        """Return the number of days of which keys are left."""
        return sum(map(bool, self._slots))

    def add(self, key: str) -> bool:
        """Add a key; return whether it is that of a day, and there is room for it."""
        slot = _slot_of(key)
        if slot is None or not self._room:
            return False
        if key not in self._slots[slot]:
            self._slots[slot][key] = None
            self._room -= 1
        return True

    def newest(self, today: int, most: int) -> Sequence[str]:
        """Return some keys, those of the newest days first.

        Args:
            today: The number of the day since 1970, UTC.
            most: Maximum number of keys.
        """
        by_age = ((today - age) % SLOTS for age in range(SLOTS))
        return [*islice(chain.from_iterable(self._slots[slot] for slot in by_age), most)]

    def discard(self, key: str) -> None:
        """Remove a key, if it waits."""
        slot = _slot_of(key)
        if slot is not None and key in self._slots[slot]:
            del self._slots[slot][key]
            self._room += 1


def _slot_of(key: str) -> int | None:
    """Return the slot of a key; `None` if no node publishes a day there."""
    node, _, rest = key.removeprefix(HISTORY).partition("/")
    kind, _, slot = rest.partition("/")
    try:
        number = int(slot) if slot.isascii() and slot.isdigit() and len(slot) == 1 else SLOTS
        same = history_key(NodeName.parse(node), HistoryKind(kind), number) == key
    except (InvalidInputError, ValueError):
        return None
    return number if same else None
