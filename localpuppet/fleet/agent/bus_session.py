"""The agent's connection to the bus, reconnected after outages, and the state that it publishes.

- `RunSide` is what the network side uses. `LocalRunSide` implements it in the same process.
- `fleet.agent.split.RemoteRunSide` implements it over a socket to another process, where
  `RunSideServer` answers.
- After an outage the agent lists its triggers, so it receives all that were sent meanwhile and have
  not expired.
- An unreachable bus never ends the agent, and never looks like an empty bus.
"""

import asyncio
import json
import math
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import KW_ONLY, dataclass
from itertools import islice
from pathlib import Path
from random import SystemRandom
from typing import Protocol

from localpuppet import __version__
from localpuppet.base.errors import (
    InvalidInputError,
    LocalpuppetError,
    UnavailableError,
    first_error,
)
from localpuppet.base.formats.converter import to_record
from localpuppet.base.formats.names import NodeName, ReleasePath, RunId
from localpuppet.base.formats.times import show_time
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.ports import Clock, LineKind, Log
from localpuppet.base.machine.waiting import wait_first
from localpuppet.fleet.agent.agent import Agent
from localpuppet.fleet.bus import key_value, layout
from localpuppet.fleet.bus.bus_limits import MAX_ASKING
from localpuppet.fleet.bus.key_value import FullError, KeyListing, KeyValue, KeyValueEntry
from localpuppet.fleet.bus.store_calls import Backoff, close, ours, unending
from localpuppet.fleet.history.node_history import last_end
from localpuppet.fleet.inventory import presence
from localpuppet.fleet.inventory.presence import SCHEMA
from localpuppet.fleet.inventory.run_end import RunEnd, newest
from localpuppet.fleet.requests import request_client
from localpuppet.fleet.trust.signing import MessageKind, MessageSigner
from localpuppet.node.enc.assignment import Assignment
from localpuppet.node.releases.release_records import Rollback
from localpuppet.node.runs.holds import Holds
from localpuppet.node.runs.run import Attempt, published
from localpuppet.node.runs.run_records import Records
from localpuppet.node.runs.run_replies import log_reply, report_reply

# The caller's name, the request's id, and the signed reply.
Answer = tuple[str, str, bytes]


class RunSideAwayError(UnavailableError):
    """The run side is another process and is unreachable."""


class RunSide(Protocol):
    """Admits messages from the bus, runs Puppet and describes the node.

    In another process, each call may raise `RunSideAwayError`: then it is unknown whether the run
    side has the messages. Hand them over again; a message that arrives twice counts once.
    """

    @property
    def me(self) -> NodeName:
        """Return the node's name."""

    async def hear(self, tokens: Sequence[bytes]) -> None:
        """Take signed triggers and write the admitted ones to disk."""

    async def serve(self, token: bytes) -> Answer | None:
        """Execute a signed request and return its reply; `None` for no reply."""

    async def describe(self) -> bytes:
        """Return the signed description of the node."""

    async def contended(self) -> None:
        """Note that another agent publishes as this node."""

    def subscribe(self) -> asyncio.Event:
        """Return an event that is set on each change; the subscriber clears it."""


class LocalRunSide:
    def __init__(
        self,
        agent: Agent,
        *,
        serve: Callable[[bytes], Awaitable[Answer | None]],
        describe: Callable[[], bytes],
    ) -> None:
        self._agent = agent
        self._serve = serve
        self._describe = describe

    @property
    def me(self) -> NodeName:
        return self._agent.me

    async def hear(self, tokens: Sequence[bytes]) -> None:
        """Take signed triggers; see `RunSide`."""
        self._agent.receive_triggers(tokens)

    async def serve(self, token: bytes) -> Answer | None:
        """Execute a signed request; see `RunSide`."""
        return await self._serve(token)

    async def describe(self) -> bytes:
        """Return the signed description of the node."""
        return self._describe()

    async def contended(self) -> None:
        self._agent.note_other_agent()

    def subscribe(self) -> asyncio.Event:
        """Return an event that is set on each change; see `RunSide`."""
        return self._agent.subscribe()


STEADY = 2.0  # seconds after which a connection counts as stable and resets the back-off
RECONCILE = 300.0  # longest time in seconds between two listings
SPREAD = 2.0  # seconds over which the nodes of a fleet spread their presence after an outage
FULL = 10.0  # longest pause in seconds between writes to a full bus
# Messages of up to 128 KiB that wait between the connection and the disk; when the queue is full,
# the reader waits.
BACKLOG = 64
SERVED = 256  # requests of which a second delivery is ignored
_NO_ROOM = "the bus has no room for this node's state and replies, periodic runs continue"

_CHANCE = SystemRandom().random


class AskedQueue:
    """Requests that wait, each caller's in turn: no caller keeps those of others waiting.

    If it is full, the newest request of the caller with the most of them is dropped.
    """

    def __init__(self, prefix: str, most: int) -> None:
        self._prefix = prefix
        self._most = most
        self._waiting: dict[str, deque[KeyValueEntry]] = {}
        self._some = asyncio.Event()
        self._put = 0

    async def put(self, entry: KeyValueEntry) -> None:
        caller = entry.key.removeprefix(self._prefix).partition("/")[0]
        self._waiting.setdefault(caller, deque()).append(entry)
        if sum(map(len, self._waiting.values())) > self._most:
            most = max(reversed(self._waiting), key=lambda name: len(self._waiting[name]))
            self._waiting[most].pop()
            if not self._waiting[most]:
                del self._waiting[most]
        self._some.set()
        self._put += 1
        if self._put % self._most == 0:
            await asyncio.sleep(0)  # the next one may be there already, and so on

    async def get(self) -> KeyValueEntry:
        while not self._waiting:
            self._some.clear()
            await self._some.wait()
        caller = next(iter(self._waiting))
        waiting = self._waiting.pop(caller)
        entry = waiting.popleft()
        if waiting:
            self._waiting[caller] = waiting  # behind the other callers
        return entry


class _Stopped(Exception):  # noqa: N818 - not an error: it ends a group of tasks
    """Ends the tasks of a session."""


class BusSession:
    """The side of the agent that uses the bus."""

    def __init__(
        self,
        side: RunSide,
        *,
        connect: Callable[[], Awaitable[KeyValue]],
        log: Log,
        keyprefix: str,
    ) -> None:
        self._side = side
        self._connect = connect
        self._log = log
        self._triggers = layout.triggers_for(side.me, keyprefix)
        self._requests = layout.requests_for(side.me)
        self._changed = side.subscribe()
        self._kv: KeyValue | None = None
        self._away = ""
        self._warned: set[str] = set()
        self._served: deque[tuple[str, int]] = deque(maxlen=SERVED)

    async def store(self) -> KeyValue:
        """Return the connected store."""
        if self._kv is None:
            raise UnavailableError(
                "there is no connection to the bus", where="bus", hint="see the agent's log"
            )
        return self._kv

    async def run(self, stop: asyncio.Event) -> None:
        """Stay connected to the bus until `stop` is set.

        Raises:
            InvalidInputError: The settings are invalid at the first connection. After a good
                connection, invalid settings count as an outage: an operator may be replacing
                certificates.
        """
        good = False
        clock = asyncio.get_running_loop().time
        backoff = Backoff()
        while not stop.is_set():
            steady = math.inf
            try:
                self._kv = await ours(self._connect())
                steady, good = clock() + STEADY, True
                # A separate task: up to Python 3.12, a failed group leaves its task marked as
                # cancelled. No time-out inside would work from then on, and the next one that is
                # due would end the task silently.
                await ours(asyncio.create_task(self._listen(self._kv, stop)))
            except* UnavailableError as errors:
                if not stop.is_set():
                    self._lost(first_error(errors))
            except* InvalidInputError as errors:
                if not good:
                    raise
                self._lost(first_error(errors))
            except* _Stopped:
                await self._farewell()
            finally:
                kv, self._kv = self._kv, None
                await close(kv, self._log)
            if clock() > steady:
                backoff.reset()
            await wait_first(stop, seconds=backoff.pause())

    async def _farewell(self) -> None:
        """Publish the result of the last run and that the node leaves the bus."""
        if self._kv is None:
            return
        try:
            token = await ours(self._side.describe())
            await ours(presence.announce(self._kv, self._side.me, token, ttl=presence.FAREWELL_TTL))
        except UnavailableError as error:
            self._log.debug(
                f"closed the bus connection without a goodbye: {error}", kind=LineKind.BUS
            )

    def _back(self) -> None:
        if self._away:
            again = "accepts values again" if self._away == _NO_ROOM else "is reachable again"
            self._log.info(f"the bus {again}", kind=LineKind.BUS)
        self._away = ""

    def _warn(self, kv: KeyValue) -> None:
        """Log each warning about the server once, not at each connection."""
        for warning in kv.warnings:
            if warning not in self._warned:
                self._warned.add(warning)
                self._log.warning(warning)

    def _lost(self, error: BaseException) -> None:
        """Log an outage once, and again if its kind changes."""
        what = "the bus is unreachable, periodic runs continue"
        if isinstance(error, RunSideAwayError):
            what = "the run side is unreachable, the bus keeps the messages"
        elif isinstance(error, FullError):
            what = _NO_ROOM
        if self._away != what:
            self._log.warning(f"{what}: {error}", kind=LineKind.BUS)
        self._away = what

    async def _listen(self, kv: KeyValue, stop: asyncio.Event) -> None:
        self._warn(kv)
        messages: asyncio.Queue[KeyValueEntry] = asyncio.Queue(BACKLOG)
        asked = AskedQueue(self._requests, BACKLOG)
        async with asyncio.TaskGroup() as group:
            for work in (
                _watch(kv, self._triggers, messages.put),
                self._hear(messages),
                _watch(kv, self._requests, asked.put),
                self._answer(kv, asked),
                self._tell(kv),
                self._reconcile(kv, messages),
            ):
                group.create_task(unending(work))
            group.create_task(_until(stop))

    async def _hear(self, messages: asyncio.Queue[KeyValueEntry]) -> None:
        """Hand over all queued messages together, which costs one write to the disk.

        Of a sender, only the newest counts, as on the bus: a flood by one costs one check.
        """
        while True:
            entry = await messages.get()
            newest = {entry.key: entry.value}
            while not messages.empty():
                entry = messages.get_nowait()
                newest[entry.key] = entry.value
            await self._side.hear([*newest.values()])

    async def _reconcile(self, kv: KeyValue, messages: asyncio.Queue[KeyValueEntry]) -> None:
        """List the triggers from time to time, because a watch may miss some."""
        while True:
            await asyncio.sleep(RECONCILE * (1 + _CHANCE()) / 2)  # spread over the fleet
            await _watch(kv, self._triggers, messages.put, once=True)

    async def _answer(self, kv: KeyValue, asked: AskedQueue) -> None:
        while True:
            entry = await asked.get()
            if (entry.key, entry.revision) in self._served:
                continue  # a new watch delivers it again
            answer = await self._side.serve(entry.value)
            self._served.append((entry.key, entry.revision))
            if answer is not None:
                await self._reply(kv, *answer)
                self._changed.set()

    async def _reply(self, kv: KeyValue, caller: str, request: str, token: bytes) -> None:
        try:
            await request_client.reply(
                kv, token, caller=caller, node=self._side.me, request=request
            )
        except (FullError, InvalidInputError) as error:  # two long names exceed the limit of keys
            self._log.warning(f"{caller} gets no reply: {error}", kind=LineKind.REQUEST)

    async def _tell(self, kv: KeyValue) -> None:
        """Publish the node's presence on each change, and often enough to keep it from expiring."""
        # After an outage, all nodes reconnect at once. Reading is urgent; unchanged presence is
        # not, so the nodes spread it.
        seconds = SPREAD * _CHANCE() if self._away else 0.0
        backoff = Backoff(longest=FULL)
        writer = presence.PresenceWriter(kv, self._side.me, self._side.contended)
        while True:
            await wait_first(self._changed, seconds=seconds)
            self._changed.clear()
            try:
                await writer.announce(self._side.describe)
            except FullError as error:  # a new connection would not make room
                self._lost(error)
                await asyncio.sleep(backoff.pause())
                seconds = 0.0
                continue
            self._back()
            backoff.reset()
            seconds = presence.PRESENCE_TTL / 3


async def _watch(
    kv: KeyValue,
    prefix: str,
    put: Callable[[KeyValueEntry], Awaitable[None]],
    *,
    once: bool = False,
) -> None:
    """Put the entries below a prefix in a queue, and those that follow unless `once` is true."""
    async with aclosing(kv.watch(prefix, largest=MAX_ASKING, parts=True)) as changes:
        async for change in changes:
            for entry in key_value.entries(change):
                await put(entry)
            if once and isinstance(change, KeyListing) and not change.more:
                break


async def _until(stop: asyncio.Event) -> None:
    await stop.wait()
    raise _Stopped


@asynccontextmanager
async def lend_store(
    session: BusSession,
    engine: str | None,
    *,
    own: str,
    connect: Callable[[str], Awaitable[KeyValue]],
) -> AsyncGenerator[KeyValue, None]:
    """Lend the session's store; for another engine than its `own`, one that is closed then."""
    if engine in (None, own):
        yield await session.store()
        return
    kv = await connect(engine)
    try:
        yield kv
    finally:
        await kv.close()


DURATIONS = 5  # of successful runs, which a rollout receives
LOOKED_AT = 50  # runs that are searched for these


@dataclass(frozen=True, slots=True)
class Describer:
    agent: Agent
    _: KW_ONLY
    holds: Callable[[], Holds]
    records: Records
    attempt: Callable[[], Attempt | None]
    modules: Path
    rollback: Callable[[], Rollback | None]
    assigned: Callable[[], Assignment | None]
    started_at: str
    has_entry: Callable[[], bool]
    run_interval: float | None
    confirmation: Callable[[], Mapping[str, Json] | None]
    signer: MessageSigner
    clock: Clock

    def signed(self) -> bytes:
        """Return the presence entry as signed JSON."""
        return self.signer.sign(json.dumps(self.status()).encode(), MessageKind.PRESENCE)

    def status(self) -> dict[str, Json]:
        """Return the state of the node; docs/reference/agent.md describes the fields."""
        agent = self.agent
        try:
            holds: list[Json] = [hold.to_dict() for hold in self.holds().active()]
        except LocalpuppetError as error:
            holds = [{"owner": "", "reason": str(error), "since": "", "until": None}]
        last = self._newest()
        running = agent.running
        state = "applying" if running else "on hold" if holds else "idle"
        ends = (*agent.not_accepted.values(), *agent.outcomes)
        outcomes: list[Json] = [outcome.to_dict() for outcome in ends]
        return {
            "schema": SCHEMA,
            "node": str(agent.me),
            "at": show_time(self.clock.now()),
            "version": __version__,
            "state": state,
            "started_at": self.started_at,
            "has_entry": self.has_entry(),
            "run_interval": self.run_interval,
            "cause": str(running) if running else None,
            "waiting": len(agent.waiting or ()),
            "blocked": agent.blocked or None,
            "holds": holds,
            "other_agent_since": agent.other_agent_since,
            "last_run": None if last is None else to_record(last),
            "release_digest": self._release(last),
            "rollback": self._public(self.rollback),
            "assignment": self._public(self.assigned),
            "confirmation": self._confirmation(),
            "outcomes": outcomes,
        }

    def _public(self, read: Callable[[], Rollback | Assignment | None]) -> Json:
        try:
            value = read()
        except LocalpuppetError:
            return None  # the next run reports the damage
        return None if value is None else {**value.to_public()}

    def _confirmation(self) -> Json:
        confirmation = self.confirmation()
        return None if confirmation is None else {**confirmation}

    def last_run(self) -> Mapping[str, Json]:
        """Return the published record of the last finished run, empty before the first run."""
        last = next(self.records.finished(), None)
        return {} if last is None else published(last).to_dict()

    def durations(self) -> list[Json]:
        """Return the seconds that the last successful complete runs took, newest first."""
        newest = islice(self.records.history(), LOOKED_AT)
        good = (status.seconds for status in newest if status.good and status.seconds is not None)
        return [*islice(good, DURATIONS)]

    def report(self, run: RunId | None) -> Mapping[str, Json]:
        """Return the published report of a run: its changes by resource; see `report_reply`."""
        directory = self.records.get(run)
        return to_record(report_reply(directory, self.records.status(directory)))

    def log(self, run: RunId | None) -> Mapping[str, Json]:
        """Return the end of Puppet's log of a run; see `report` and `log_reply`."""
        directory = self.records.get(run)
        return log_reply(directory, self.records.status(directory))

    def _newest(self) -> RunEnd | None:
        """Return the end of the last run, or of an apply that was refused after it."""
        interval, attempt = self.run_interval, self.attempt()
        last = last_end(self.records, interval)
        refused = None if attempt is None else RunEnd.of_attempt(attempt, last, interval)
        return newest(filter(None, (refused, last)))

    def _release(self, last: RunEnd | None) -> Json:
        """Return the digest of the last run's release if it is staged."""
        if last is None:
            return None
        link = self.modules / ReleasePath(last.release)
        try:
            return link.readlink().name
        except OSError:
            return None
