"""The outbox: the entry that a good run leaves for the agent to publish, and references to one.

- A view has the entry if the node's entry in it has the same digest, or the same or a later time.
- The file is `inventory/entry` in the state directory. It has the packed entry without a signature,
  so a run neither signs nor uses the bus.
- Other nodes reject an entry that goes back in time. After the clock was set back, the next entry
  is slightly newer than the one before.
- An entry is new if its digest differs, or if the one before is older than `refresh`.
"""

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.converter import Message
from localpuppet.base.formats.names import NodeName, parse_sha256
from localpuppet.base.formats.text import shown_names
from localpuppet.base.machine.files import disk_errors, make_private, write_durably
from localpuppet.base.value import Value
from localpuppet.fleet.inventory.entry import AHEAD, InventoryEntry

# The limit per run: with the longest names they fit into a request.
MAX_AWAITED = 100


class AwaitedEntry(Message):
    """A reference to an entry that a run waits for; `at` is by that node's clock."""

    WHERE: ClassVar = "awaited entry"
    node: NodeName
    digest: Annotated[str, parse_sha256]
    at: float


class ViewedNode(Value):
    """The entry of a node in a view; its digest is empty if it was not looked up."""

    digest: str
    at: float


def lacking(
    awaited: tuple[AwaitedEntry, ...],
    seen: Mapping[NodeName, ViewedNode],
    refused: Mapping[NodeName, str],
) -> str:
    """Return the awaited entries that a view does not have as one line, empty if it has all."""
    missing = [entry for entry in awaited if not _has(seen.get(entry.node), entry)]
    named = [
        f"{entry.node} ({refused[entry.node]})" if entry.node in refused else str(entry.node)
        for entry in missing
    ]
    return shown_names(named) if named else ""


def _has(seen: ViewedNode | None, awaited: AwaitedEntry) -> bool:
    return seen is not None and (seen.at >= awaited.at or seen.digest == awaited.digest)


FILE = Path("inventory", "entry")
STEP = 0.001


class Outbox:
    """The entry to publish, on disk."""

    def __init__(self, state: Path) -> None:
        self.path = state / FILE
        self._mark = self.path.with_name("published")

    def stamp(self) -> int:
        """Return a number that changes with the outbox; 0 before the first good run."""
        try:
            return self.path.stat().st_mtime_ns
        except OSError:
            return 0

    def is_published(self) -> bool:
        """Return whether the current entry was recorded as published."""
        payload = self.payload()
        try:
            return payload is None or self._mark.read_text("ascii") == _digest(payload)
        except (OSError, ValueError):
            return False

    def note_published(self, payload: bytes) -> None:
        """Record that the bus has an entry."""
        write_durably(self._mark, _digest(payload).encode("ascii"))

    def payload(self) -> bytes | None:
        """Return the packed entry; `None` before the first good run."""
        with disk_errors(self.path), suppress(FileNotFoundError):
            return self.path.read_bytes()
        return None

    def offer(self, entry: InventoryEntry, *, refresh: float) -> bool:
        """Write an entry if it is new; return whether it was.

        After `refresh` seconds, an unchanged entry counts as new. If receivers would reject the
        entry or the disk fails, the entry before remains, and an error is raised.
        """
        before = self.entry()
        if before is not None and before.at <= entry.at + AHEAD:
            if before.digest == entry.digest and entry.at - before.at < refresh:
                return False
            entry = replace(entry, at=max(entry.at, before.at + STEP))
        # Receivers rejected an entry from a clock that was further ahead.
        payload = entry.to_payload()
        InventoryEntry.parse(payload)  # report here what every receiver would reject
        make_private(self.path.parent)
        write_durably(self.path, payload)
        return True

    def entry(self) -> InventoryEntry | None:
        """Return the entry; `None` if this version finds none that it can read."""
        payload = self.payload()
        try:
            return None if payload is None else InventoryEntry.parse(payload)
        except InvalidInputError:
            return None  # of another version or damaged: the next entry replaces it


def awaited(entry: InventoryEntry | None) -> AwaitedEntry | None:
    """Return the reference by which other nodes wait for an entry; `None` without an entry."""
    return (
        None if entry is None else AwaitedEntry(node=entry.node, digest=entry.digest, at=entry.at)
    )


def _digest(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()
