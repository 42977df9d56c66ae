"""The parts of a rollout: its journal, its nodes over the bus, and the signals that stop it."""

import asyncio
import signal
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, closing
from functools import partial
from typing import Any

from localpuppet.base.errors import (
    BusyError,
    IntegrityError,
    InvalidInputError,
    StateError,
    UnavailableError,
)
from localpuppet.base.formats.names import RolloutId, SignerName
from localpuppet.base.formats.text import shown_names
from localpuppet.base.formats.times import show_time
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.wiring.fleet import machine_name
from localpuppet.node.wiring.node import NodeWiring
from localpuppet.rollout.execution import metrics
from localpuppet.rollout.execution.checking import CheckRunner
from localpuppet.rollout.execution.checkpoints import CheckpointKeeper
from localpuppet.rollout.execution.commands.reading import BusCommandReader, JournalCommandReader
from localpuppet.rollout.execution.commands.recording import TimestampedJournal
from localpuppet.rollout.execution.events import (
    ChangesApproved,
    Event,
    RolloutBegan,
    RolloutContinued,
    RolloutEnded,
    RolloutPaused,
    RolloutResumed,
    RolloutStopped,
    RolloutTakenOver,
)
from localpuppet.rollout.execution.executing import Execution
from localpuppet.rollout.execution.fleet import FleetNodes
from localpuppet.rollout.execution.journal import JournalReader, JournalWriter, resumable
from localpuppet.rollout.execution.node_runs.takeover import TakeoverCheck
from localpuppet.rollout.execution.probing import Probing
from localpuppet.rollout.execution.report import RolloutReport
from localpuppet.rollout.execution.resuming import head_of, take_up
from localpuppet.rollout.execution.state import RolloutState
from localpuppet.rollout.execution.unready import can_do_without, why_not_ready
from localpuppet.rollout.wiring.checkpoints import FleetRollouts

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Events after which the metrics are updated; these then include the results of nodes, too.
_TOLD = (
    RolloutResumed,
    RolloutPaused,
    RolloutContinued,
    ChangesApproved,
    RolloutStopped,
    RolloutEnded,
)


class RolloutController:
    """Carries out rollouts in this root's signer's name.

    Args:
        node: The settings of the root.
        rollouts: The rollouts of this signer.
    """

    def __init__(self, node: NodeWiring, rollouts: FleetRollouts) -> None:
        self._node = node
        self._rollouts = rollouts
        self._fleet = rollouts.fleet

    def _now(self) -> str:
        """Return the time in the form of journals."""
        return show_time(self._node.clock.now())

    async def begin(self, began: RolloutBegan, on_event: Callable[[Event], None]) -> JournalReader:
        """Carry a new rollout out to its end and return its journal.

        Raises:
            UnavailableError: The bus is unreachable; nothing changed.
            BusyError: The rollout was resumed elsewhere.
        """
        async with self._fleet.connected() as kv:
            self._rollouts.journals.forget(self._node.clock.now())
            with closing(self._rollouts.journals.begin(began, at=self._now())) as journal:
                on_event(began)
                async with self._execution(kv, journal, on_event) as (execution, keeper):
                    await self._carry_out(execution, execution.run(resume=False), keeper)
        return journal

    async def resume(
        self,
        rollout: RolloutId | None,
        on_event: Callable[[Event], None],
        *,
        replay: Callable[[Sequence[Event]], None],
        owner: SignerName | None = None,
        commands: bool = False,
    ) -> JournalReader:
        """Resume a rollout, carry it out to its end and return its journal.

        Args:
            rollout: The rollout; the newest that can be resumed for `None`.
            on_event: Receives each event.
            replay: Receives the events so far.
            owner: The caller of the rollout; `None` for this signer.
            commands: Whether checks of another caller's rollout may run commands as this user.

        Raises:
            BusyError: Another process controls it.
            InvalidInputError: It is over, unknown, or cannot be taken over.
            IntegrityError: Its checkpoint on the bus is not trusted.
        """
        async with self._fleet.connected() as kv:
            heads = self._rollouts.heads(kv, owner)
            own = heads.owner == self._fleet.signer.name
            taken = await take_up(
                rollout,
                journals=self._rollouts.journals,
                heads=heads,
                problem=None if own else partial(self._not_to_be_taken, kv, commands=commands),
                note=self._note,
            )
            with closing(taken.journal) as journal:
                journal.forget_commands()
                replay([event for _, event in journal.events()])
                on_event(journal.state().began)
                revision = taken.revision
                async with self._execution(kv, journal, on_event, revision) as (execution, keeper):
                    by = RolloutResumed(
                        epoch=taken.epoch, caller=self._rollouts.caller, machine=machine_name()
                    )
                    await self._carry_out(execution, execution.run(resume=True, by=by), keeper)
        return journal

    async def give_up(self, rollout: RolloutId) -> None:
        """End a rollout that no process controls, and release its nodes; see `resume`."""
        async with self._fleet.connected() as kv:
            with closing(self._rollouts.journals.take(rollout)) as journal:
                resumable(journal, journal.state().began.caller)
                async with self._execution(kv, journal) as (execution, keeper):
                    work = execution.give_up(f"stopped by {self._rollouts.caller}")
                    await self._carry_out(execution, work, keeper)

    async def give_back(self, rollout: RolloutId) -> None:
        """Release the nodes that a finished rollout kept; see `resume`."""
        async with self._fleet.connected() as kv:
            with closing(self._rollouts.journals.take(rollout)) as journal:
                async with self._execution(kv, journal) as (execution, keeper):
                    await self._carry_out(execution, execution.give_back(), keeper)

    async def _not_to_be_taken(self, kv: KeyValue, state: RolloutState, *, commands: bool) -> str:
        """Return why this process or the nodes reject a takeover; empty if they do not."""
        if state.commands and not commands:
            return f"its checks would run {shown_names(state.commands)} as you (--run-checks)"
        nodes = FleetNodes(
            kv,
            client=self._fleet.requests(kv),
            verifier=self._fleet.verifier,
            began=state.began,
        )
        left = [node for node, result in state.results().items() if result is None]
        problems = await nodes.ready(left)
        return "" if can_do_without(state, problems) else why_not_ready(state, problems)

    def _note(self, text: str) -> None:
        self._node.observe("").note(text)

    async def _carry_out(
        self,
        execution: Execution,
        work: Coroutine[Any, Any, RolloutEnded],
        keeper: CheckpointKeeper,
    ) -> None:
        """Control a rollout and keep its checkpoint on the bus, until another has its epoch."""
        working, keeping = asyncio.create_task(work), asyncio.create_task(keeper.run())
        try:
            await asyncio.wait([working, keeping], return_when=asyncio.FIRST_COMPLETED)
            if keeping.done() and keeping.exception() is not None:
                if isinstance(keeping.exception(), BusyError):
                    execution.hand_over()
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
            self._note(f"warning: its checkpoint on the bus is outdated: {error}")

    @asynccontextmanager
    async def _execution(
        self,
        kv: KeyValue,
        journal: JournalWriter,
        on_event: Callable[[Event], None] = lambda _: None,
        revision: int | None = None,
    ) -> AsyncGenerator[tuple[Execution, CheckpointKeeper], None]:
        state = journal.state()
        client = self._fleet.requests(kv)
        nodes = FleetNodes(
            kv,
            client=client,
            verifier=self._fleet.verifier,
            began=state.began,
            note=self._note,
        )
        keeper = CheckpointKeeper(
            self._rollouts.heads(kv, SignerName.parse_caller(state.began.caller)),
            state.began.id,
            current=lambda: head_of(journal),
            revision=revision,
            note=self._note,
        )
        keeper.changed()
        notes = TimestampedJournal(
            journal,
            self._node.clock,
            changed=keeper.changed,
            ears=(
                JournalCommandReader(journal, machine=machine_name()),
                BusCommandReader(
                    kv,
                    signer=self._fleet.signer,
                    verifier=self._fleet.verifier,
                    journal=journal,
                    denied=self._rollouts.denied,
                    clock=self._node.clock,
                ),
            ),
        )
        checks = CheckRunner(Probing(ca=self._node.settings.https_ca))

        def receive(event: Event) -> None:
            on_event(event)
            if isinstance(event, _TOLD):
                self._measure(journal, running=True)

        execution = Execution(state, notes=notes, nodes=nodes, checks=checks, on_event=receive)

        async def believes(takeover: RolloutTakenOver) -> bool:
            if await keeper.is_ours():
                return False
            execution.hand_over(takeover)
            return True

        client.heed_refusals(
            TakeoverCheck(client=client, began=state.began, believes=believes).heed
        )
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

    def _measure(self, journal: JournalReader, *, running: bool) -> None:
        """Update the metrics of a rollout; a failure to write them does not stop it."""
        try:
            report = RolloutReport.of(journal.events(), taken=running)
            metrics.update(
                metrics.file_beside(self._node.settings.metrics), report, now=self._node.clock.now()
            )
        except StateError as error:
            self._note(f"warning: the metrics cannot be written: {error}")
