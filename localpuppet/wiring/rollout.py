"""The parts of a rollout: its journal, its nodes over the bus, and the signals that stop it."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING

from localpuppet.formats.names import RolloutId
from localpuppet.formats.times import show_time
from localpuppet.orchestrator.rollout.checking import Checking
from localpuppet.orchestrator.rollout.events import Began, Event
from localpuppet.orchestrator.rollout.executing import Execution
from localpuppet.orchestrator.rollout.fleet import FleetNodes
from localpuppet.orchestrator.rollout.journal import Journal, Journals, own, resumable
from localpuppet.orchestrator.rollout.probing import Probing
from localpuppet.orchestrator.rollout.words import Word
from localpuppet.wiring.fleet import FleetWiring
from localpuppet.wiring.node import NodeWiring

if TYPE_CHECKING:
    from localpuppet.bus.key_value import KeyValue
    from localpuppet.machine.ports import Clock

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class RolloutWiring:
    """What rolls out from this root, in its signer's name.

    Args:
        node: The parts of the node.
    """

    def __init__(self, node: NodeWiring) -> None:
        self._node = node
        self.fleet = FleetWiring(node)

    @cached_property
    def journals(self) -> Journals:
        """The journals of this machine."""
        return Journals(self._node.settings.state / "rollouts")

    @property
    def caller(self) -> str:
        """Who rolls out."""
        return self.fleet.signer.name.caller

    def new_id(self) -> RolloutId:
        """Return the id of a rollout that begins now."""
        newest = next(iter(self.journals.ids()), None)
        return RolloutId.of(self._node.clock.now(), os.urandom(2).hex(), newest)

    def now(self) -> str:
        """Return the time, as journals have it."""
        return show_time(self._node.clock.now())

    async def begin(self, began: Began, told: Callable[[Event], None]) -> Journal:
        """Carry a new rollout out to its end; return its journal.

        Raises:
            UnavailableError: The bus cannot be reached; nothing changed.
            StateError: The journal cannot be written.
        """
        async with self.fleet.connected() as kv:
            self.journals.forget(self._node.clock.now())
            journal = self.journals.begin(began, at=self.now())
            try:
                told(began)
                async with self._execution(kv, journal, told) as execution:
                    await execution.run(resume=False)
            finally:
                journal.close()
        return journal

    async def resume(self, journal: Journal, told: Callable[[Event], None]) -> None:
        """Go on with a rollout to its end; see `begin`.

        Raises:
            BusyError: Another process does.
            InvalidInputError: It is over, or another's.
        """
        async with self.fleet.connected() as kv:
            journal.take()
            try:
                began = resumable(journal, self.caller)
                journal.forget_words()
                told(began)
                async with self._execution(kv, journal, told) as execution:
                    await execution.run(resume=True)
            finally:
                journal.close()

    async def give_up(self, journal: Journal, told: Callable[[Event], None]) -> None:
        """End a rollout that no process goes on with: its nodes are given back; see `resume`."""
        async with self.fleet.connected() as kv:
            journal.take()
            try:
                resumable(journal, self.caller)
                async with self._execution(kv, journal, told) as execution:
                    await execution.give_up(f"stopped by {self.caller}")
            finally:
                journal.close()

    async def give_back(self, journal: Journal, told: Callable[[Event], None]) -> None:
        """Let go of the nodes that a rollout kept which is over; see `resume`."""
        async with self.fleet.connected() as kv:
            journal.take()
            try:
                own(journal.state().began, self.caller)
                async with self._execution(kv, journal, told) as execution:
                    await execution.give_back()
            finally:
                journal.close()

    @asynccontextmanager
    async def _execution(
        self, kv: "KeyValue", journal: Journal, told: Callable[[Event], None]
    ) -> AsyncGenerator[Execution, None]:
        state = journal.state()
        nodes = FleetNodes(
            kv,
            client=self.fleet.requests(kv),
            verifier=self.fleet.verifier,
            began=state.began,
        )
        notes = Timed(journal, self._node.clock)
        checks = Checking(Probing(ca=self._node.settings.https_ca))
        execution = Execution(state, notes=notes, nodes=nodes, checks=checks, told=told)
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, execution.interrupt, f"stopped by {number.name}")
        try:
            yield execution
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)


class Timed:
    """A journal whose events have the time at which they are written.

    Args:
        journal: The journal.
        clock: The machine's clock.
    """

    def __init__(self, journal: Journal, clock: "Clock") -> None:
        self._journal = journal
        self._clock = clock

    def append(self, event: Event) -> None:
        """Write an event down; see `executing.Notes`."""
        self._journal.append(event, at=show_time(self._clock.now()))

    def now(self) -> datetime:
        """Return the time; see `executing.Notes`."""
        return self._clock.now()

    def said(self, after: int) -> list[tuple[int, Word, str]]:
        """Return what was said; see `executing.Notes`."""
        return self._journal.said(after)
