"""What a node tells the others of itself, on the disk: written down after a good run.

Owns: the outbox (`inventory/entry` in the state directory), and when an entry is news. Refuses to
know: runs, which facts leave the node (`facts`), the bus (`publishing`): a run is not to load it.

- The outbox holds the packed entry and no signature: a run does not pay for signing.
- Entries of a node do not go back in time, or others would refuse them: after the clock was set
  back, the next entry is a moment newer than the one before.
- An entry is news when its digest is another, or the one before is older than `refresh`.
"""

import hashlib
from dataclasses import replace
from pathlib import Path

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.machine.files import make_private, state_problem, write_durably
from localpuppet.fleet.inventory.awaited import Awaited
from localpuppet.fleet.inventory.entry import AHEAD, InventoryEntry

FILE = Path("inventory", "entry")
STEP = 0.001


class Outbox:
    """The entry that the bus is to hold, on the disk.

    Args:
        state: The state directory.
    """

    def __init__(self, state: Path) -> None:
        self.path = state / FILE
        self._mark = self.path.with_name("published")

    def stamp(self) -> int:
        """Return what changes when the outbox does; 0 before the first good run."""
        try:
            return self.path.stat().st_mtime_ns
        except OSError:
            return 0

    def is_published(self) -> bool:
        """Return whether somebody has noted that the bus held what is here now."""
        payload = self.payload()
        try:
            return payload is None or self._mark.read_text("ascii") == _digest(payload)
        except (OSError, ValueError):
            return False

    def note_published(self, payload: bytes) -> None:
        """Note that the bus holds an entry."""
        write_durably(self._mark, _digest(payload).encode("ascii"))

    def payload(self) -> bytes | None:
        """Return the packed entry; `None` before the first good run."""
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise state_problem(error, self.path) from error

    def offer(self, entry: InventoryEntry, *, refresh: float) -> bool:
        """Write an entry down, if it is news; return whether it was.

        Args:
            entry: The entry, with its digest.
            refresh: Seconds after which the same is news again.

        Raises:
            InvalidInputError: The entry is one that no receiver would take: too large, say.
            StateError: The disk refused; the entry before stays.
        """
        before = self.entry()
        if before is not None and before.at <= entry.at + AHEAD:
            if before.digest == entry.digest and entry.at - before.at < refresh:
                return False
            entry = replace(entry, at=max(entry.at, before.at + STEP))
        # What a clock wrote that was wrong by more, nobody has taken.
        payload = entry.to_payload()
        InventoryEntry.parse(payload)  # who tells must hear of what every receiver would refuse
        make_private(self.path.parent)
        write_durably(self.path, payload)
        return True

    def entry(self) -> InventoryEntry | None:
        """Return the entry; `None` where there is none that this version reads."""
        payload = self.payload()
        try:
            return None if payload is None else InventoryEntry.parse(payload)
        except InvalidInputError:
            return None  # written by another version, or damaged: what follows replaces it


def awaited(entry: InventoryEntry | None) -> Awaited | None:
    """Return what a node's entry is awaited by elsewhere; `None` where there is no entry."""
    return None if entry is None else Awaited(node=entry.node, digest=entry.digest, at=entry.at)


def _digest(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()
