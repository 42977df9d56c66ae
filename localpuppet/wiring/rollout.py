"""The parts of a rollout: its journal, its nodes over the bus, and the signals that stop it."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from localpuppet.errors import IntegrityError, InvalidInputError, StateError, UnavailableError
from localpuppet.formats.names import RolloutId
from localpuppet.formats.times import show_time
from localpuppet.orchestrator.rollout import metrics
from localpuppet.orchestrator.rollout.checking import Checking
from localpuppet.orchestrator.rollout.events import (
    Began,
    Continued,
    Event,
    Over,
    Paused,
    Resumed,
    Stopped,
)
from localpuppet.orchestrator.rollout.executing import Execution
from localpuppet.orchestrator.rollout.fleet import FleetNodes
from localpuppet.orchestrator.rollout.heads import HeadKeeper, Heads
from localpuppet.orchestrator.rollout.journal import Journal, Journals, own, resumable
from localpuppet.orchestrator.rollout.probing import Probing
from localpuppet.orchestrator.rollout.report import Report
from localpuppet.orchestrator.rollout.resuming import head_of, take_up
from localpuppet.orchestrator.rollout.words import Word
from localpuppet.wiring.fleet import FleetWiring
from localpuppet.wiring.node import NodeWiring

if TYPE_CHECKING:
    from localpuppet.bus.key_value import KeyValue
    from localpuppet.machine.ports import Clock

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# What monitoring is told of as it happens; of the ends of nodes it learns with these.
_TOLD = (Resumed, Paused, Continued, Stopped, Over)


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
            BusyError: The rollout was resumed elsewhere.
        """
        async with self.fleet.connected() as kv:
            self.journals.forget(self._node.clock.now())
            journal = self.journals.begin(began, at=self.now())
            try:
                told(began)
                async with self._execution(kv, journal, told) as (execution, keeper):
                    await self._carry_out(execution.run(resume=False), keeper)
            finally:
                journal.close()
        return journal

    async def resume(
        self,
        rollout: RolloutId | None,
        told: Callable[[Event], None],
        *,
        replay: Callable[[Sequence[Event]], None],
    ) -> Journal:
        """Go on with a rollout to its end; return its journal. See `begin` and `take_up`.

        Args:
            rollout: Which; the newest that can go on for `None`.
            told: Learns of each event.
            replay: Learns of what happened before.

        Raises:
            BusyError: Another process goes on with it.
            InvalidInputError: It is over, or another's, or not known.
            IntegrityError: Its head on the bus is not ours.
        """
        async with self.fleet.connected() as kv:
            taken = await take_up(
                rollout,
                journals=self.journals,
                heads=self._heads(kv),
                caller=self.caller,
                note=self._note,
            )
            journal = taken.journal
            try:
                journal.forget_words()
                replay([event for _, event in journal.events()])
                told(journal.state().began)
                revision = taken.revision
                async with self._execution(kv, journal, told, revision) as (execution, keeper):
                    await self._carry_out(execution.run(resume=True, epoch=taken.epoch), keeper)
            finally:
                journal.close()
        return journal

    async def give_up(self, journal: Journal, told: Callable[[Event], None]) -> None:
        """End a rollout that no process goes on with: its nodes are given back; see `resume`."""
        async with self.fleet.connected() as kv:
            journal.take()
            try:
                resumable(journal, self.caller)
                async with self._execution(kv, journal, told) as (execution, keeper):
                    await self._carry_out(execution.give_up(f"stopped by {self.caller}"), keeper)
            finally:
                journal.close()

    async def give_back(self, journal: Journal, told: Callable[[Event], None]) -> None:
        """Let go of the nodes that a rollout kept which is over; see `resume`."""
        async with self.fleet.connected() as kv:
            journal.take()
            try:
                own(journal.state().began, self.caller)
                async with self._execution(kv, journal, told) as (execution, keeper):
                    await self._carry_out(execution.give_back(), keeper)
            finally:
                journal.close()

    def _heads(self, kv: "KeyValue") -> Heads:
        return Heads(kv, signer=self.fleet.signer, verifier=self.fleet.verifier)

    def _note(self, text: str) -> None:
        self._node.observe("").note(text)

    async def _carry_out(self, work: Coroutine[Any, Any, Over], keeper: HeadKeeper) -> None:
        """Do the work of a rollout, with its head kept on the bus, until another has its epoch."""
        working, keeping = asyncio.create_task(work), asyncio.create_task(keeper.run())
        try:
            await asyncio.wait([working, keeping], return_when=asyncio.FIRST_COMPLETED)
            if keeping.done() and keeping.exception() is not None:
                working.cancel()
                await asyncio.wait([working])
                await keeping
            await working
        finally:
            keeping.cancel()
            working.cancel()
        try:
            await keeper.write()
        except (UnavailableError, IntegrityError, InvalidInputError) as error:
            self._note(f"warning: its head on the bus is not the newest: {error}")

    @asynccontextmanager
    async def _execution(
        self,
        kv: "KeyValue",
        journal: Journal,
        told: Callable[[Event], None],
        revision: int | None = None,
    ) -> AsyncGenerator[tuple[Execution, HeadKeeper], None]:
        state = journal.state()
        client = self.fleet.requests(kv)
        nodes = FleetNodes(
            kv,
            client=client,
            verifier=self.fleet.verifier,
            began=state.began,
        )
        keeper = HeadKeeper(
            self._heads(kv),
            state.began.id,
            current=lambda: head_of(journal),
            revision=revision,
            note=self._note,
        )
        keeper.changed()
        notes = Timed(journal, self._node.clock, changed=keeper.changed)
        checks = Checking(Probing(ca=self._node.settings.https_ca))

        def heard(event: Event) -> None:
            told(event)
            if isinstance(event, _TOLD):
                self._measure(journal, running=True)

        execution = Execution(state, notes=notes, nodes=nodes, checks=checks, told=heard)
        self._measure(journal, running=True)
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, execution.interrupt, f"stopped by {number.name}")
        try:
            async with client.together():
                yield execution, keeper
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)
            self._measure(journal, running=False)

    def _measure(self, journal: Journal, *, running: bool) -> None:
        """Tell monitoring of a rollout; a textfile that cannot be written stops none."""
        try:
            report = Report.of(journal.events(), taken=running)
            metrics.update(self._node.settings.rollout_metrics, report, now=self._node.clock.now())
        except StateError as error:
            self._note(f"warning: monitoring is not told: {error}")


class Timed:
    """A journal whose events have the time at which they are written.

    Args:
        journal: The journal.
        clock: The machine's clock.
        changed: Called after each write.
    """

    def __init__(self, journal: Journal, clock: "Clock", *, changed: Callable[[], None]) -> None:
        self._journal = journal
        self._clock = clock
        self._changed = changed

    def append(self, *events: Event) -> None:
        """Write events down; see `notes.Notes`."""
        self._journal.append(*events, at=show_time(self._clock.now()))
        self._changed()

    def now(self) -> datetime:
        """Return the time; see `executing.Notes`."""
        return self._clock.now()

    def said(self, after: int) -> list[tuple[int, Word, str]]:
        """Return what was said; see `notes.Notes`."""
        return self._journal.said(after)
