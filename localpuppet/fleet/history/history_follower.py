"""The history of nodes on the bus: verified days for a board, the newest first.

- A value is unpacked only after its signature is verified. Its signer must be the node of the key,
  and its day that of the slot; no record may be of the future.
- A rejected value is logged once for each node and reason, and skipped.
- A restart lists all days again; the board says which values it has, and these are not verified.
- Listed days are read in the background, the newest first, with a quarter of a core at most.
  Changes do not wait for them, but a day that changes again within seconds is read with them.

A node without a running agent has no presence. What its last run did is in these runs.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import aclosing
from dataclasses import KW_ONLY, dataclass, field
from itertools import chain, islice
from typing import Any, Protocol

from localpuppet.base.bounded_dict import BoundedDict
from localpuppet.base.errors import IntegrityError, InvalidInputError, LocalpuppetError, first_error
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.text import one_line, shortened
from localpuppet.base.machine.ports import Clock, LineKind, Log
from localpuppet.base.value import Value
from localpuppet.fleet.bus import key_value
from localpuppet.fleet.bus.bus_limits import MAX_HISTORY
from localpuppet.fleet.bus.layout import HISTORY
from localpuppet.fleet.bus.store_calls import log_failure, ours, unending
from localpuppet.fleet.history.history_records import (
    AUDIT,
    RUNS,
    SLOTS,
    AuditRecord,
    HistoryDay,
    HistoryForm,
    HistoryKind,
    RunSummary,
    day_of,
    history_key,
    parse_day,
)
from localpuppet.fleet.inventory.entry import AHEAD
from localpuppet.fleet.trust.signing import Verifier

# Keys that wait: those of all days of 20,000 nodes. Any client could write more.
MOST = 20_000 * SLOTS * len(HistoryKind)


class HistoryBacklog:
    """Keys of days, by the slot that a day has on the bus."""

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
        """Return some keys, those of the newest days first; `today` counts days since 1970."""
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


# Values that are verified together, in a thread.
TOGETHER = 50
# The rest after listed values were read, as a multiple of the time that this took.
REST = 3.0
# Nodes whose last rejection is remembered.
MAX_REJECTIONS = 1000
# Seconds within which a second change of a day waits, and days of which the last one is remembered.
RECENT = 2.0
MAX_RECENT = 10_000
MAX_REASON = 300
_FORMS: dict[HistoryKind, HistoryForm[Any]] = {RUNS.kind: RUNS, AUDIT.kind: AUDIT}


class HistoryBoard(Protocol):
    """Receives verified days of history; called in the event loop, one call at a time.

    A day comes again whenever its node adds a record, so a record comes many times: the board
    replaces runs by node and `run`, and audit records by node and `identity`. A later version of a
    day may lack records that came before; the board keeps them.

    `take_runs` and `take_audit` end when the records are stored, so at most one batch waits in
    memory.
    """

    async def unknown(self, digests: Mapping[str, bytes]) -> AbstractSet[str]:
        """Return the keys whose values the board has not stored, so that only they are verified."""

    def note_taken(self, key: str, digest: bytes) -> None:
        """Record that the board has everything in a value; see `unknown`."""

    def note_waiting(self, days: int | None) -> None:
        """Note of how many of the last days the history is not complete yet."""

    async def take_runs(self, days: Sequence[HistoryDay[RunSummary]]) -> None:
        """Store run summaries."""

    async def take_audit(self, days: Sequence[HistoryDay[AuditRecord]]) -> None:
        """Store audit records."""


class HistoryPauses(Value):
    """The seconds before a follower tries again to reach the bus, also without read access."""

    again: float = 5.0
    not_allowed: float = 600.0


@dataclass(slots=True, eq=False)
class HistoryFollower:
    """Passes the verified days of all nodes to a board."""

    board: HistoryBoard
    verifier: Verifier
    _: KW_ONLY
    store: Callable[[], Awaitable[key_value.KeyValue]]
    clock: Clock
    log: Log
    pauses: HistoryPauses = HistoryPauses()
    _after: int | None = field(default=None, init=False)
    _born: float = field(default=0.0, init=False)
    _backlog: HistoryBacklog = field(default_factory=HistoryBacklog, init=False)
    _listed: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _rejections: dict[str, str] = field(default_factory=dict, init=False)
    _changed: BoundedDict[str, float] = field(
        default_factory=lambda: BoundedDict(MAX_RECENT), init=False
    )
    _reported: str = field(default="", init=False)

    async def run(self) -> None:
        """Follow the bus without end; log an outage once, and start again."""
        while True:
            pause = self.pauses.again
            try:
                # A separate task: a group that failed leaves its task marked as cancelled.
                await ours(asyncio.create_task(self._follow(await ours(self.store()))))
            except* LocalpuppetError as errors:
                error = first_error(errors)
                if isinstance(error, key_value.RefusedError):
                    pause = self.pauses.not_allowed
                    self.board.note_waiting(None)
                if str(error) != self._reported:
                    log_failure(self.log, "the history of nodes is not current", error)
                self._reported = str(error)
            await asyncio.sleep(pause)

    async def _follow(self, kv: key_value.KeyValue) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(unending(self._watch(kv)))
            group.create_task(unending(self._catch_up(kv)))

    async def _catch_up(self, kv: key_value.KeyValue) -> None:
        """Read the listed days, and rest in between."""
        now = asyncio.get_running_loop().time
        while True:
            await self._listed.wait()
            begun, today = now(), day_of(self.clock.now().timestamp())
            keys = self._backlog.newest(today, TOGETHER)
            fetched = await asyncio.gather(*(ours(kv.get(key)) for key in keys))
            await self._take([entry for entry in fetched if entry is not None])
            for key in keys:
                self._backlog.discard(key)
            self.board.note_waiting(self._backlog.days)
            if not self._backlog.days:
                self._listed.clear()
            await asyncio.sleep(REST * (now() - begun))

    async def _watch(self, kv: key_value.KeyValue) -> None:
        born = await kv.born(HISTORY)
        if born != self._born:  # its revisions say nothing about those of the store before
            self._born, self._after = born, None
        following = kv.watch(HISTORY, after=self._after, largest=MAX_HISTORY, parts=True)
        async with aclosing(following) as changes:
            async for change in changes:
                self._reported = ""
                await self._take(await self._left(change))
                if not (isinstance(change, key_value.KeyListing) and change.more):
                    self._after = key_value.revision_of(change)

    async def _left(self, change: key_value.Change) -> Sequence[key_value.KeyValueEntry]:
        """Return the values of a change to read at once: of a listing, those that are no days."""
        new = key_value.entries(change)
        if isinstance(change, key_value.KeyListing):
            new = await self._new(new)
        elif not any(self._is_recent(item.key) for item in new):
            return new
        left = [item for item in new if not self._backlog.add(item.key)]
        self.board.note_waiting(self._backlog.days)
        if self._backlog.days:
            self._listed.set()
        return left

    def _is_recent(self, key: str) -> bool:
        now = asyncio.get_running_loop().time()
        before = self._changed.get(key)
        self._changed[key] = now
        return before is not None and now - before < RECENT

    async def _new(
        self, values: Sequence[key_value.KeyValueEntry]
    ) -> list[key_value.KeyValueEntry]:
        unknown = await self.board.unknown({value.key: _digest(value) for value in values})
        return [value for value in values if value.key in unknown]

    async def _take(self, values: Sequence[key_value.KeyValueEntry]) -> None:
        new = await self._new(values)
        for begin in range(0, len(new), TOGETHER):
            some = new[begin : begin + TOGETHER]
            results = await asyncio.to_thread(lambda: [*map(self._read, some)])  # noqa: B023
            days = [day for day in results if not isinstance(day, str)]
            await self.board.take_runs([day for kind, day in days if kind is RUNS.kind])
            await self.board.take_audit([day for kind, day in days if kind is AUDIT.kind])
            for entry, result in zip(some, results, strict=True):
                if isinstance(result, str):
                    self._log_rejection(entry, result)
                else:
                    self._rejections.pop(result[1].node, None)
                    self.board.note_taken(entry.key, _digest(entry))

    def _read(self, entry: key_value.KeyValueEntry) -> tuple[HistoryKind, HistoryDay[Any]] | str:
        """Return the day in a value, or why it is rejected."""
        try:
            return read_entry(entry, self.verifier, now=self.clock.now().timestamp())
        except LocalpuppetError as error:
            return shortened(one_line(str(error)), MAX_REASON)

    def _log_rejection(self, entry: key_value.KeyValueEntry, reason: str) -> None:
        node = entry.key.removeprefix(HISTORY).partition("/")[0]
        known = self._rejections.get(node)
        if known == reason or (known is None and len(self._rejections) >= MAX_REJECTIONS):
            return
        self._rejections[node] = reason
        text = f"rejected the history of {node}: {reason}"
        self.log.warning(text, kind=LineKind.STRANGER)


def read_entry(
    entry: key_value.KeyValueEntry, verifier: Verifier, *, now: float
) -> tuple[HistoryKind, HistoryDay[Any]]:
    """Return the verified day in a value of the bus."""
    name, _, rest = entry.key.removeprefix(HISTORY).partition("/")
    node = NodeName.parse(name)
    if _slot_of(entry.key) is None:  # first: reading a day takes long
        raise InvalidInputError("has a key of another kind", where="history")
    form = _FORMS[HistoryKind(rest.partition("/")[0])]
    signed = verifier.verify(entry.value, form.message)
    if str(signed.signer) != str(node):
        raise IntegrityError(f"signed by {signed.signer}", where="history")
    day = parse_day(signed.payload, form)
    if day.node != node or history_key(node, form.kind, day.day) != entry.key:
        raise InvalidInputError("is at the key of another node or day", where="history")
    if any(record.at > now + AHEAD for record in day.records):
        raise InvalidInputError(
            "has a time in the future (check its node's clock)", where="history"
        )
    return form.kind, day


def _digest(entry: key_value.KeyValueEntry) -> bytes:
    return hashlib.sha256(entry.value).digest()


RIGHT = "add 'reads: [history]' for this name to the roster, and apply its permissions"


async def read_runs(
    kv: key_value.KeyValue, node: NodeName, verifier: Verifier, *, now: float
) -> tuple[list[RunSummary], str]:
    """Return the runs of a node that the bus has, the newest first.

    A day that is rejected ends the list: a reinstalled node has another key than in the days
    before, and an upgraded one another form. Then the second value is the reason, else it is empty.
    The last written day raises its error.
    """
    keys = [history_key(node, RUNS.kind, slot) for slot in range(SLOTS)]
    try:
        fetched = await asyncio.gather(*map(kv.get, keys))
    except key_value.RefusedError as error:
        raise key_value.RefusedError("no right to read history", where="bus", hint=RIGHT) from error
    runs: list[RunSummary] = []
    problem = ""
    for entry in sorted(filter(None, fetched), key=lambda entry: entry.revision, reverse=True):
        try:
            runs += read_entry(entry, verifier, now=now)[1].records
        except (IntegrityError, InvalidInputError) as error:
            if not runs:
                raise
            problem = f"days before are not read: {error}"
            break
    return sorted(runs, key=lambda run: run.at, reverse=True), problem
