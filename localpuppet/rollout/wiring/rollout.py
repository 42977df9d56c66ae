"""The parts of a rollout: its journal, its nodes over the bus, and the signals that stop it."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import cached_property, partial
from typing import Any

from localpuppet.base.errors import (
    BusyError,
    IntegrityError,
    InvalidInputError,
    LocalpuppetError,
    StateError,
    UnavailableError,
)
from localpuppet.base.formats.names import RolloutId, SignerName
from localpuppet.base.formats.text import shown_names
from localpuppet.base.formats.times import show_time
from localpuppet.fleet.bus.key_value import KeyValue, RefusedError
from localpuppet.fleet.trust.policy import TAKEOVER
from localpuppet.fleet.trust.policy_file import refusal
from localpuppet.fleet.wiring.fleet import FleetWiring, machine_name
from localpuppet.fleet.wiring.settings import peers
from localpuppet.node.wiring.node import NodeWiring
from localpuppet.rollout.execution import metrics
from localpuppet.rollout.execution.checking import CheckRunner
from localpuppet.rollout.execution.checkpoint import RolloutCheckpoint
from localpuppet.rollout.execution.checkpoints import CheckpointKeeper, RolloutCheckpoints
from localpuppet.rollout.execution.commands.command import RolloutCommand
from localpuppet.rollout.execution.commands.reading import BusCommandReader, JournalCommandReader
from localpuppet.rollout.execution.commands.recording import TimestampedJournal
from localpuppet.rollout.execution.commands.sending import CommandSender, look
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
from localpuppet.rollout.execution.journal import RolloutJournal, resumable
from localpuppet.rollout.execution.journals import Journals
from localpuppet.rollout.execution.node_runs.takeover import TakeoverCheck
from localpuppet.rollout.execution.probing import Probing
from localpuppet.rollout.execution.report import RolloutReport
from localpuppet.rollout.execution.resuming import head_of, take_up
from localpuppet.rollout.execution.state import RolloutState
from localpuppet.rollout.execution.unready import can_do_without, why_not_ready

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


class RolloutWiring:
    """Builds and runs rollouts of this root, in its signer's name."""

    def __init__(self, node: NodeWiring) -> None:
        self._node = node
        self.fleet = FleetWiring(node)

    @cached_property
    def journals(self) -> Journals:
        """The journals of this machine."""
        return Journals(self._node.settings.state / "rollouts")

    @property
    def caller(self) -> str:
        """The caller id of this root's signer."""
        return self.fleet.signer.name.caller

    def new_id(self) -> RolloutId:
        """Return the id of a rollout that begins now."""
        newest = next(iter(self.journals.ids()), None)
        return RolloutId.of(self._node.clock.now(), os.urandom(2).hex(), newest)

    def now(self) -> str:
        """Return the time in the form of journals."""
        return show_time(self._node.clock.now())

    async def begin(self, began: RolloutBegan, told: Callable[[Event], None]) -> RolloutJournal:
        """Carry a new rollout out to its end and return its journal.

        Raises:
            UnavailableError: The bus is unreachable; nothing changed.
            BusyError: The rollout was resumed elsewhere.
        """
        async with self.fleet.connected() as kv:
            self.journals.forget(self._node.clock.now())
            journal = self.journals.begin(began, at=self.now())
            try:
                told(began)
                async with self._execution(kv, journal, told) as (execution, keeper):
                    await self._carry_out(execution, execution.run(resume=False), keeper)
            finally:
                journal.close()
        return journal

    async def resume(
        self,
        rollout: RolloutId | None,
        told: Callable[[Event], None],
        *,
        replay: Callable[[Sequence[Event]], None],
        owner: SignerName | None = None,
        commands: bool = False,
    ) -> RolloutJournal:
        """Resume a rollout, carry it out to its end and return its journal.

        Args:
            rollout: The rollout; the newest that can be resumed for `None`.
            told: Receives each event.
            replay: Receives the events so far.
            owner: The caller of the rollout; `None` for this signer.
            commands: Whether checks of another caller's rollout may run commands as this user.

        Raises:
            BusyError: Another process controls it.
            InvalidInputError: It is over, unknown, or cannot be taken over.
            IntegrityError: Its checkpoint on the bus is not trusted.
        """
        async with self.fleet.connected() as kv:
            heads = self.heads(kv, owner)
            own = heads.owner == self.fleet.signer.name
            taken = await take_up(
                rollout,
                journals=self.journals,
                heads=heads,
                problem=None if own else partial(self._not_to_be_taken, kv, commands=commands),
                note=self._note,
            )
            journal = taken.journal
            try:
                journal.forget_words()
                replay([event for _, event in journal.events()])
                told(journal.state().began)
                revision = taken.revision
                async with self._execution(kv, journal, told, revision) as (execution, keeper):
                    by = RolloutResumed(
                        epoch=taken.epoch, caller=self.caller, machine=machine_name()
                    )
                    await self._carry_out(execution, execution.run(resume=True, by=by), keeper)
            finally:
                journal.close()
        return journal

    async def give_up(self, journal: RolloutJournal, told: Callable[[Event], None]) -> None:
        """End a rollout that no process controls, and release its nodes; see `resume`."""
        async with self.fleet.connected() as kv:
            journal.take()
            try:
                resumable(journal, journal.state().began.caller)
                async with self._execution(kv, journal, told) as (execution, keeper):
                    work = execution.give_up(f"stopped by {self.caller}")
                    await self._carry_out(execution, work, keeper)
            finally:
                journal.close()

    async def give_back(self, journal: RolloutJournal, told: Callable[[Event], None]) -> None:
        """Release the nodes that a finished rollout kept; see `resume`."""
        async with self.fleet.connected() as kv:
            journal.take()
            try:
                async with self._execution(kv, journal, told) as (execution, keeper):
                    await self._carry_out(execution, execution.give_back(), keeper)
            finally:
                journal.close()

    async def say(
        self,
        word: RolloutCommand,
        rollout: RolloutId | None,
        owner: SignerName | None,
        *,
        about: Callable[[RolloutState], str],
    ) -> RolloutCheckpoint:
        """Send a command to the controller of a rollout on another machine.

        Args:
            word: The command.
            rollout: The rollout; the newest that is running for `None`.
            owner: The caller of the rollout; `None` for this signer.
            about: Returns what the command refers to, from the state in the checkpoint.

        Returns:
            The checkpoint that named the controller.

        Raises:
            InvalidInputError: There is no such rollout, or the controller rejected the command.
            UnavailableError: The bus is unreachable, or the controller did not reply.
            IntegrityError: The checkpoint is not trusted.
        """
        async with self.fleet.connected() as kv:
            heads = self.heads(kv, owner)
            found = await look(heads, rollout, word)
            speaker = CommandSender(
                kv,
                signer=self.fleet.signer,
                verifier=self.fleet.verifier,
                clock=self._node.clock,
                machine=machine_name(),
            )
            events = [event for _, event in found.head.events]
            text = about(RolloutState.of(events)) if events else ""
            await speaker.say(word, owner=heads.owner, to=found, about=text)
        return found.head

    async def elsewhere(self, journal: RolloutJournal) -> bool:
        """Return whether a rollout with a journal here continued on another machine."""
        return bool(await self.newer_heads([journal.state()], lambda _: None))

    async def newer_heads(
        self, states: Iterable[RolloutState], note: Callable[[str], None]
    ) -> dict[RolloutId, RolloutCheckpoint]:
        """Return the checkpoints of rollouts that continued on other machines.

        Args:
            states: The states of these rollouts by the journals of this machine.
            note: Receives why a checkpoint is rejected.
        """
        found = {}
        async with self.fleet.connected() as kv:
            for state in states:
                rollout, owner = state.began.id, SignerName.parse_caller(state.began.caller)
                try:
                    kept = await self.heads(kv, owner).read(rollout)
                except (RefusedError, IntegrityError, InvalidInputError) as error:
                    note(f"rollout {rollout}: cannot tell whether it continued elsewhere: {error}")
                    continue
                if kept is not None and kept.head.epoch > state.epoch:
                    found[rollout] = kept.head
        return found

    async def _not_to_be_taken(self, kv: KeyValue, state: RolloutState, *, commands: bool) -> str:
        """Return why this process or the nodes reject a takeover; empty if they do not."""
        if state.commands and not commands:
            return f"its checks would run {shown_names(state.commands)} as you (--run-checks)"
        nodes = FleetNodes(
            kv,
            client=self.fleet.requests(kv),
            verifier=self.fleet.verifier,
            began=state.began,
        )
        left = [node for node, fate in state.fates().items() if fate is None]
        problems = await nodes.ready(left)
        return "" if can_do_without(state, problems) else why_not_ready(state, problems)

    def heads(self, kv: KeyValue, owner: SignerName | None = None) -> RolloutCheckpoints:
        """Return the checkpoints of a caller's rollouts; of this signer's for `None`."""
        return RolloutCheckpoints(
            kv,
            signer=self.fleet.signer,
            verifier=self.fleet.verifier,
            denied=self._denied,
            owner=owner,
        )

    def _denied(self, caller: SignerName) -> str:
        """Return why a signer may not take rollouts over here; empty if they may."""
        try:
            return refusal(peers(self._node).policy, caller, TAKEOVER)
        except LocalpuppetError as error:
            return str(error)

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
        journal: RolloutJournal,
        told: Callable[[Event], None],
        revision: int | None = None,
    ) -> AsyncGenerator[tuple[Execution, CheckpointKeeper], None]:
        state = journal.state()
        client = self.fleet.requests(kv)
        nodes = FleetNodes(
            kv,
            client=client,
            verifier=self.fleet.verifier,
            began=state.began,
            note=self._note,
        )
        keeper = CheckpointKeeper(
            self.heads(kv, SignerName.parse_caller(state.began.caller)),
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
                    signer=self.fleet.signer,
                    verifier=self.fleet.verifier,
                    journal=journal,
                    denied=self._denied,
                    clock=self._node.clock,
                ),
            ),
        )
        checks = CheckRunner(Probing(ca=self._node.settings.https_ca))

        def heard(event: Event) -> None:
            told(event)
            if isinstance(event, _TOLD):
                self._measure(journal, running=True)

        execution = Execution(state, notes=notes, nodes=nodes, checks=checks, told=heard)

        async def believes(found: RolloutTakenOver) -> bool:
            if await keeper.is_ours():
                return False
            execution.hand_over(found)
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

    def _measure(self, journal: RolloutJournal, *, running: bool) -> None:
        """Update the metrics of a rollout; a failure to write them does not stop it."""
        try:
            report = RolloutReport.of(journal.events(), taken=running)
            metrics.update(
                metrics.file_beside(self._node.settings.metrics), report, now=self._node.clock.now()
            )
        except StateError as error:
            self._note(f"warning: the metrics cannot be written: {error}")
