"""The agent's connection to the bus: it hears, tells, and comes back after every outage.

Owns: when to connect and reconnect, and what runs while there is a connection. Refuses to know:
engines, what a trigger or request means.

Invariants: an outage costs nothing but time: whatever was written meanwhile and has not expired is
heard afterwards, by a listing; the store being away never ends the agent, and never looks like
"nothing is there".
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from random import SystemRandom

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.machine.ports import LineKind, Log
from localpuppet.fleet.agent.run_side import RunSide, RunSideAwayError
from localpuppet.fleet.bus import key_value, layout
from localpuppet.fleet.bus.backoff import Backoff
from localpuppet.fleet.bus.key_value import Entry, KeyValue, Listing
from localpuppet.fleet.bus.outage import close, ours, unending
from localpuppet.fleet.inventory import presence
from localpuppet.fleet.requests import exchange

STEADY = 2.0  # seconds: a connection that lasted so long is not a sign that the next will not
RECONCILE = 300.0  # seconds at the most
SPREAD = 2.0  # seconds within which a fleet that is back tells so
# How many messages, of up to 128 KiB, may pile up between the connection and the disk; beyond that
# the reader waits.
BACKLOG = 64

_CHANCE = SystemRandom().random


class _Stopped(Exception):  # noqa: N818 - no error: it ends a group of tasks
    """The agent is to end."""


class BusSession:
    """The agent's side of the bus.

    Args:
        side: Hears the triggers, does the requests, says how this node is.
        connect: Connects to the store.
        log: What it says.
        keyprefix: Where triggers are.
    """

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

    async def store(self) -> KeyValue:
        """Return the store that we are connected to.

        Raises:
            UnavailableError: There is no connection.
        """
        if self._kv is None:
            raise UnavailableError(
                "there is no connection to the bus", where="bus", hint="see the agent's log"
            )
        return self._kv

    async def run(self, stop: asyncio.Event) -> None:
        """Be on the bus until `stop` is set.

        Raises:
            StateError: What was heard could not be written down.
            InvalidInputError: The settings are refused at the first connection. What was good once
                and is refused later is an outage: certificates are being replaced, say.
        """
        good = False
        clock = asyncio.get_running_loop().time
        backoff = Backoff()
        while not stop.is_set():
            steady = math.inf
            try:
                self._kv = await ours(self._connect())
                steady, good = clock() + STEADY, True
                # A task of its own. Up to Python 3.12 a group that failed leaves its task marked
                # as cancelled: no time-out in that works from then on, and the next one that is
                # due would end it in silence.
                await ours(asyncio.create_task(self._listen(self._kv, stop)))
            except* UnavailableError as errors:
                if not stop.is_set():
                    self._lost(_first(errors))
            except* InvalidInputError as errors:
                if not good:
                    raise
                self._lost(_first(errors))
            except* _Stopped:
                await self._farewell()
            finally:
                kv, self._kv = self._kv, None
                await close(kv, self._log)
            if clock() > steady:
                backoff.reset()
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), backoff.pause())

    async def _farewell(self) -> None:
        """Tell what became of the last run, and that nobody is here from now on."""
        if self._kv is None:
            return
        try:
            token = await ours(self._side.describe())
            await ours(presence.announce(self._kv, self._side.me, token, ttl=presence.FAREWELL_TTL))
        except UnavailableError as error:
            self._log.debug(f"left the bus without a word: {error}", kind=LineKind.BUS)

    def _back(self) -> None:
        if self._away:
            self._log.info("the bus is back", kind=LineKind.BUS)
        self._away = ""

    def _warn(self, kv: KeyValue) -> None:
        """Say once what an operator should know of the server, not at each connection."""
        for warning in kv.warnings:
            if warning not in self._warned:
                self._warned.add(warning)
                self._log.warning(warning)

    def _lost(self, error: BaseException) -> None:
        """Say once for each outage, and each of its two kinds, that there is one."""
        what = "the bus is away, runs go on by the timer"
        if isinstance(error, RunSideAwayError):
            what = "nothing is handed over for now, the bus keeps it"
        if self._away != what:
            self._log.warning(f"{what}: {error}", kind=LineKind.BUS)
        self._away = what

    async def _listen(self, kv: KeyValue, stop: asyncio.Event) -> None:
        self._warn(kv)
        heard: asyncio.Queue[bytes] = asyncio.Queue(BACKLOG)
        asked: asyncio.Queue[Entry] = asyncio.Queue(BACKLOG)
        async with asyncio.TaskGroup() as group:
            for work in (
                self._watch_triggers(kv, heard),
                self._hear(heard),
                self._watch_requests(kv, asked),
                self._answer(kv, asked),
                self._tell(kv),
                self._reconcile(kv, heard),
            ):
                group.create_task(unending(work))
            group.create_task(_until(stop))

    async def _watch_triggers(self, kv: KeyValue, heard: asyncio.Queue[bytes]) -> None:
        following = kv.watch(self._triggers, largest=layout.MAX_ASKING, parts=True)
        async with aclosing(following) as changes:
            async for change in changes:
                for entry in key_value.entries(change):
                    await heard.put(entry.value)

    async def _hear(self, heard: asyncio.Queue[bytes]) -> None:
        """Take what has piled up together: one write to the disk for all of it."""
        while True:
            tokens = [await heard.get()]
            while not heard.empty():
                tokens.append(heard.get_nowait())
            await self._side.hear(tokens)

    async def _reconcile(self, kv: KeyValue, heard: asyncio.Queue[bytes]) -> None:
        """Look from time to time whether the watch has missed something: it is only a hint."""
        while True:
            await asyncio.sleep(RECONCILE * (1 + _CHANCE()) / 2)  # not a fleet in one moment
            looking = kv.watch(self._triggers, largest=layout.MAX_ASKING, parts=True)
            async with aclosing(looking) as changes:
                async for change in changes:
                    for entry in key_value.entries(change):
                        await heard.put(entry.value)
                    if isinstance(change, Listing) and not change.more:
                        break

    async def _watch_requests(self, kv: KeyValue, asked: asyncio.Queue[Entry]) -> None:
        following = kv.watch(self._requests, largest=layout.MAX_ASKING, parts=True)
        async with aclosing(following) as changes:
            async for change in changes:
                for entry in key_value.entries(change):
                    await asked.put(entry)

    async def _answer(self, kv: KeyValue, asked: asyncio.Queue[Entry]) -> None:
        while True:
            entry = await asked.get()
            answer = await self._side.serve(entry.value)
            if answer is not None:
                await self._reply(kv, *answer)
                self._changed.set()

    async def _reply(self, kv: KeyValue, caller: str, request: str, token: bytes) -> None:
        try:
            await exchange.reply(kv, token, caller=caller, node=self._side.me, request=request)
        except InvalidInputError as error:  # two long names make no key
            self._log.warning(f"{caller} gets no reply: {error}", kind=LineKind.REQUEST)

    async def _tell(self, kv: KeyValue) -> None:
        """Tell how this node is: at once when it changes, and often enough not to be forgotten."""
        # A fleet comes back to its server at one moment: to hear is urgent, to tell what has not
        # changed is not; and from then on not all of them tell at the same time.
        seconds = SPREAD * _CHANCE() if self._away else 0.0
        while True:
            # Not wait_for: up to Python 3.11 it forgets a cancellation when what it waits for
            # comes at the same time, and a session with news would never end.
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._changed.wait()
            self._changed.clear()
            await presence.announce(kv, self._side.me, await self._side.describe())
            self._back()
            seconds = presence.PRESENCE_TTL / 3


async def _until(stop: asyncio.Event) -> None:
    await stop.wait()
    raise _Stopped


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    first = errors.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
