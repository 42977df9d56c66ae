"""Rollout checkpoints on the bus: what another machine needs to continue a rollout.

- It is JSON, packed with zlib: at most `MAX_PACKED_CHECKPOINT` bytes on the bus and
  `MAX_CHECKPOINT` bytes unpacked.
- It holds all events. If they are too many it holds none, and only the machine with the journal
  can continue. For a finished rollout it holds a summary instead.
- It may lag behind the journal. Nodes fill the gap: a node that ran once for a step does not run
  again for it.

    /localpuppet/rollouts/CALLER/ID     a checkpoint, signed by the controller

- A controller claims an epoch by the revision of the key, so only one process can have it. A
  controller that was overtaken learns it from its next write.
- A checkpoint is trusted if it was signed by the rollout's caller, by this machine's signer, or by
  a signer who may take rollouts over.
- An unreachable bus delays checkpoints and stops no rollout.
"""

import asyncio
import zlib
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import Annotated, Any, ClassVar

from localpuppet.base.errors import (
    BusyError,
    IntegrityError,
    InvalidInputError,
    LocalpuppetError,
    UnavailableError,
)
from localpuppet.base.formats.converter import AllowedRange, JsonRecord, from_record
from localpuppet.base.formats.names import RolloutId, SignerName
from localpuppet.base.formats.packed import unpacked
from localpuppet.base.formats.strict_json import compact, loads
from localpuppet.base.formats.text import shortened
from localpuppet.base.formats.times import TimeText
from localpuppet.base.machine.waiting import wait_first
from localpuppet.base.value import Value
from localpuppet.fleet.bus import layout
from localpuppet.fleet.bus.bus_limits import MAX_CHECKPOINT, MAX_EPOCH, MAX_PACKED_CHECKPOINT
from localpuppet.fleet.bus.key_value import Change, FullError, KeyValue, KeyValueEntry, RefusedError
from localpuppet.fleet.trust.signing import MessageKind, MessageSigner, Verifier
from localpuppet.rollout.events import RolloutEnding, TimedEvent
from localpuppet.rollout.rollout_report import ELSEWHERE, RolloutReport
from localpuppet.rollout.state import ProgressState, RolloutState, word_of_ending

# Characters of a title and of a reason in a summary.
MAX_TEXT = 200
_WHERE = "rollout checkpoint"
_Text = Annotated[str, partial(shortened, most=MAX_TEXT)]


class Summary(Value):
    """The end of a rollout in short; the results of single nodes are in its journal."""

    IS_OPEN: ClassVar = True
    title: _Text
    ending: RolloutEnding
    reason: _Text
    started_at: TimeText
    finished_at: TimeText
    noop: bool
    counts: Mapping[Annotated[str, ProgressState], Annotated[int, AllowedRange(minimum=0)]]
    release: _Text

    @classmethod
    def of(cls, report: RolloutReport) -> "Summary | None":
        """Return the summary of a rollout; `None` if it is not over."""
        over = report.state.over
        if over is None or report.ended is None:
            return None
        return cls(
            title=shortened(report.state.began.title, MAX_TEXT),
            ending=over.ending,
            reason=shortened(report.why, MAX_TEXT),
            started_at=report.began,
            finished_at=report.ended,
            noop=report.state.began.options.noop,
            counts=report.counts(),
            release=report.release,
        )

    def to_dict(self, rollout: RolloutId, epoch: int) -> dict[str, Any]:
        """Return the JSON form of `RolloutReport.summary`, without the caller."""
        return {
            "id": rollout,
            "title": self.title,
            "release": self.release,
            "state": self.word,
            "reason": self.reason,
            "started_at": self.started_at,
            "finished_at": self.finished_at,
            "epoch": epoch,
            "noop": self.noop,
            "succeeded": self.succeeded,
            "counts": dict(self.counts),
            "waits_for": [],
        }

    @property
    def word(self) -> str:
        """Why it is over, in words."""
        return word_of_ending(self.ending, self.counts)

    @property
    def succeeded(self) -> bool:
        """Whether every node succeeded."""
        return set(self.counts) == {ProgressState.DONE}


class RolloutCheckpoint(JsonRecord):
    """A rollout checkpoint.

    `epoch` is the newest one that began or was claimed. There are no events if they are too large.
    A rollout that is over cannot be resumed.
    """

    SCHEMA: ClassVar = 1
    IS_OPEN: ClassVar = True
    rollout: RolloutId
    epoch: Annotated[int, AllowedRange(minimum=1, maximum=MAX_EPOCH - 1)]
    events: tuple[TimedEvent, ...]
    over: bool = False
    summary: Summary | None = None

    @property
    def state(self) -> RolloutState | None:
        """The state of the rollout; `None` without events."""
        return RolloutState.of(event for _, event in self.events) if self.events else None

    def shown(self) -> dict[str, Any]:
        """Return the JSON form in a list of rollouts, without unknown fields."""
        if self.summary is not None:
            return self.summary.to_dict(self.rollout, self.epoch)
        if not self.events:
            state = "over" if self.over else ELSEWHERE
            return {"id": self.rollout, "state": state, "epoch": self.epoch, "counts": {}}
        report = RolloutReport.of(self.events, taken=True)
        state = report.word if report.state.over is not None else ELSEWHERE
        return {**report.summary(), "state": state}

    def to_payload(self) -> bytes:
        for checkpoint in (self, replace(self, events=())):
            data = compact(checkpoint.to_dict()).encode()
            packed = zlib.compress(data)
            if len(data) <= MAX_CHECKPOINT and len(packed) <= MAX_PACKED_CHECKPOINT:
                break
        return packed

    @classmethod
    def parse(cls, payload: bytes, *, caller: str) -> "RolloutCheckpoint":
        """Return the checkpoint in verified bytes; reject events that contradict each other."""
        if len(payload) > MAX_PACKED_CHECKPOINT:
            raise InvalidInputError(f"is larger than {MAX_PACKED_CHECKPOINT} bytes", where=_WHERE)
        try:
            data = unpacked(payload, most=MAX_CHECKPOINT)
        except ValueError as error:
            problem = "is malformed: not one whole zlib stream, or too large"
            raise InvalidInputError(problem, where=_WHERE) from error
        try:
            head = from_record(cls, loads(data))
            if head.summary is not None and not head.over:
                raise ValueError("over")
            if not head.events:
                return head
            # They may tell what cannot have happened.
            state = RolloutReport.of(head.events, taken=True).state
            if state.epoch > head.epoch:
                raise ValueError("epoch of an event")
        except (KeyError, TypeError, ValueError, AttributeError, LocalpuppetError) as error:
            raise InvalidInputError(f"is malformed: {error}", where=_WHERE) from error
        if (state.began.id, state.began.caller) != (head.rollout, caller):
            raise InvalidInputError(f"is not of a rollout of {caller}", where=_WHERE)
        return head


# Seconds; nodes remember their runs of a rollout for the same time.
TTL = 30 * 86400.0
# Seconds for which other machines can read the end, and a controller learns it was overtaken.
OVER_TTL = 7 * 86400.0
PACE = 1.0  # seconds between two writes, at least
LOOK = 10.0  # seconds between two looks whether the bus has room
AGAIN = 5.0  # seconds until the next write to an unreachable bus


class PublishedCheckpoint(Value):
    head: RolloutCheckpoint
    revision: int
    signer: SignerName


class RolloutCheckpoints:
    """The checkpoints of one caller's rollouts; `denied` says why a signer may not take over."""

    def __init__(
        self,
        kv: KeyValue,
        *,
        signer: MessageSigner,
        verifier: Verifier,
        denied: Callable[[SignerName], str],
        owner: SignerName | None = None,
    ) -> None:
        self._kv = kv
        self._signer = signer
        self._verifier = verifier
        self._denied = denied
        self.signer = signer.name
        self.owner = owner or signer.name

    async def read(self, rollout: RolloutId) -> PublishedCheckpoint | None:
        """Return the checkpoint of a rollout; `None` if the bus has none.

        Raises:
            IntegrityError: The signer is not trusted, or the checkpoint is of another rollout.
        """
        entry = await self._kv.get(self.key(rollout))
        return None if entry is None else self._verified(entry, rollout)

    def watch(self) -> AsyncGenerator[Change, None]:
        """Watch the checkpoints without an end; see `KeyValue.watch`."""
        return self._kv.watch(layout.rollouts_of(self.owner))

    def believed(self, entry: KeyValueEntry) -> PublishedCheckpoint:
        """Return the verified checkpoint in an entry of the bus; see `read`."""
        rollout = RolloutId.parse(entry.key.removeprefix(layout.rollouts_of(self.owner)))
        return self._verified(entry, rollout)

    async def fullness(self) -> str:
        """Return why the bus has no room, one line; empty if it may have."""
        return await self._kv.fullness()

    def key(self, rollout: RolloutId) -> str:
        return layout.rollouts_of(self.owner) + rollout

    def _verified(self, entry: KeyValueEntry, rollout: RolloutId) -> PublishedCheckpoint:
        signed = self._verifier.verify(entry.value, MessageKind.CHECKPOINT)
        if signed.signer not in (self.owner, self._signer.name) and (
            why := self._denied(signed.signer)
        ):
            raise IntegrityError(
                f"was signed by {signed.signer}, not by {self.owner} ({why})", where=entry.key
            )
        head = RolloutCheckpoint.parse(signed.payload, caller=self.owner.caller)
        if head.rollout != rollout:
            raise IntegrityError(f"is the checkpoint of rollout {head.rollout}", where=entry.key)
        return PublishedCheckpoint(head=head, revision=entry.revision, signer=signed.signer)

    async def known(self, rollout: RolloutId | None) -> PublishedCheckpoint:
        """Return the checkpoint of a rollout, for `None` of the newest; there must be one."""
        published = await (self.newest() if rollout is None else self.read(rollout))
        if published is None:
            raise InvalidInputError(
                f"the bus has no rollout {f'{rollout} ' if rollout else ''}of {self.owner}",
                where="rollout",
                hint="see 'localpuppet rollout list', or name its operator: --operator NAME",
            )
        return published

    async def find(self, rollout: RolloutId | None) -> PublishedCheckpoint:
        """Return the checkpoint of a rollout that can be resumed; see `known`.

        If the newest is over, that is an error, and no older one takes its place.
        """
        published = await self.known(rollout)
        if published.head.over:
            summary = published.head.summary
            raise InvalidInputError(
                f"is over: {summary.ending}" if summary else "is over",
                where=str(published.head.rollout),
                hint="'localpuppet rollout list' shows its result",
            )
        return published

    async def newest(self, *, resumable: bool = False) -> PublishedCheckpoint | None:
        """Return the checkpoint of the caller's newest rollout; `None` without any.

        With `resumable`, rollouts that cannot be resumed do not count.

        Untrusted and malformed values are skipped: otherwise anyone with write access to the bus
        could block all of the caller's rollouts.
        """
        for entry in await self._entries():
            with suppress(IntegrityError, InvalidInputError):
                published = self.believed(entry)
                if not (resumable and published.head.over):
                    return published
        return None

    async def all(self, *, most: int) -> "list[RolloutCheckpoint]":
        """Return the trusted checkpoints, the newest rollouts first, up to `most`."""
        checkpoints = []
        for entry in await self._entries():
            with suppress(IntegrityError, InvalidInputError):
                checkpoints.append(self.believed(entry).head)
            if len(checkpoints) == most:
                break
        return checkpoints

    async def _entries(self) -> list[KeyValueEntry]:
        """Return all entries of the caller, the newest rollouts first."""
        listing = await self._kv.list(layout.rollouts_of(self.owner))
        return sorted(listing.entries, key=lambda entry: entry.key, reverse=True)

    async def write(self, head: RolloutCheckpoint, revision: int | None) -> int:
        """Write a checkpoint over the one with a revision, or as the first; return its revision.

        Raises:
            UnavailableError: The bus did not confirm the write, which may have succeeded.
            BusyError: Another process wrote one in between.
        """
        token = self._signer.sign(head.to_payload(), MessageKind.CHECKPOINT)
        key = self.key(head.rollout)
        ttl = OVER_TTL if head.over else TTL
        if revision is None:
            written = await self._kv.add_if_new(key, token, ttl=ttl)
        else:
            written = await self._kv.set_if_revision(key, token, revision, ttl=ttl)
        if written is None:
            raise BusyError(f"another process controls rollout {head.rollout}")
        return written


@dataclass(slots=True, eq=False)
class CheckpointKeeper:
    """Keeps the checkpoint of one rollout up to date, behind its journal."""

    heads: RolloutCheckpoints
    rollout: RolloutId
    _: KW_ONLY
    current: Callable[[], RolloutCheckpoint]
    revision: int | None
    note: Callable[[str], None]
    _changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def changed(self) -> None:
        """Schedule a write of the checkpoint."""
        self._changed.set()

    async def run(self) -> None:
        """Write the checkpoint after each change, until the bus rejects it."""
        full = ""
        while True:
            await wait_first(self._changed, seconds=LOOK)
            try:
                if self._changed.is_set():
                    self._changed.clear()
                    await self.write()
                before, full = full, await self.heads.fullness()
                if bool(full) != bool(before):
                    again = "the bus accepts values again; the rollout continues"
                    self.note(f"cannot write to the bus; trying again: {full}" if full else again)
            except (RefusedError, IntegrityError, InvalidInputError) as error:
                self.note(f"warning: only this machine can resume the rollout: {error}")
                return
            except UnavailableError as error:
                if isinstance(error, FullError) and not full:
                    full = str(error)
                    self.note(f"cannot write to the bus; trying again: {full}")
                self._changed.set()
                await asyncio.sleep(AGAIN)
            await asyncio.sleep(PACE)

    async def is_ours(self) -> bool:
        """Return whether this process wrote the checkpoint on the bus; false if that is unknown."""
        try:
            published = await self.heads.read(self.rollout)
        except (UnavailableError, IntegrityError, InvalidInputError):
            return False
        mine = self.current().epoch
        return published is not None and (published.signer, published.head.epoch) == (
            self.heads.signer,
            mine,
        )

    async def write(self) -> None:
        head = self.current()
        try:
            self.revision = await self.heads.write(head, self.revision)
        except BusyError:
            await self._write_over(head)

    async def _write_over(self, head: RolloutCheckpoint) -> None:
        """Write again over this process's own checkpoint: a reply was lost, or the key expired."""
        newest = await self.heads.read(self.rollout)
        if newest is not None and newest.head.epoch > head.epoch:
            raise BusyError(
                f"rollout {self.rollout} was resumed elsewhere (epoch {newest.head.epoch}, this is"
                f" {head.epoch})"
            )
        self.revision = await self.heads.write(head, None if newest is None else newest.revision)
