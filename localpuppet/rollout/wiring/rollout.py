"""The parts of a rollout: journals, checkpoints on the bus, nodes, sites, and signals.

`FleetRollouts` reads journals and checkpoints; only `RolloutController` carries rollouts out.
"""

import asyncio
import os
import secrets
import signal
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, closing
from functools import cached_property, partial
from pathlib import Path
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
from localpuppet.fleet.trust.policy import TAKEOVER, refusal
from localpuppet.fleet.wiring.fleet import FleetWiring, machine_name, peers
from localpuppet.node.app import NodeApp
from localpuppet.node.enc.https import Https
from localpuppet.node.enc.input import Fetch
from localpuppet.rollout import report_page
from localpuppet.rollout.checking import CheckRunner, Probing
from localpuppet.rollout.checkpoints import (
    CheckpointKeeper,
    RolloutCheckpoint,
    RolloutCheckpoints,
)
from localpuppet.rollout.commands import (
    BusCommandReader,
    CommandSender,
    JournalCommandReader,
    RolloutCommand,
    TimestampedJournal,
    look,
)
from localpuppet.rollout.deciding import can_do_without, why_not_ready
from localpuppet.rollout.events import (
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
from localpuppet.rollout.executing import Execution
from localpuppet.rollout.journal import JournalReader, Journals, JournalWriter, resumable
from localpuppet.rollout.resuming import TakeoverCheck, head_of, take_up
from localpuppet.rollout.rollout_nodes import FleetNodes
from localpuppet.rollout.rollout_report import RolloutReport
from localpuppet.rollout.site_file import Record, ServiceFetch
from localpuppet.rollout.state import RolloutState

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


class FleetRollouts:
    """The rollouts of this root's signer, and those of others that it may take over.

    Args:
        node: The settings of the root.
    """

    def __init__(self, node: NodeApp) -> None:
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

    def heads(self, kv: KeyValue, owner: SignerName | None = None) -> RolloutCheckpoints:
        """Return the checkpoints of a caller's rollouts; of this signer's for `None`."""
        return RolloutCheckpoints(
            kv,
            signer=self.fleet.signer,
            verifier=self.fleet.verifier,
            denied=self.denied,
            owner=owner,
        )

    def denied(self, caller: SignerName) -> str:
        """Return why a signer may not take rollouts over here; empty if they may."""
        try:
            return refusal(peers(self._node).policy, caller, TAKEOVER)
        except LocalpuppetError as error:
            return str(error)

    async def say(
        self,
        command: RolloutCommand,
        rollout: RolloutId | None,
        owner: SignerName | None,
        *,
        about: Callable[[RolloutState], str],
    ) -> RolloutCheckpoint:
        """Send a command to the controller of a rollout on another machine.

        Args:
            command: The command.
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
            published = await look(heads, rollout, command)
            speaker = CommandSender(
                kv,
                signer=self.fleet.signer,
                verifier=self.fleet.verifier,
                clock=self._node.clock,
                machine=machine_name(),
            )
            events = [event for _, event in published.head.events]
            text = about(RolloutState.of(events)) if events else ""
            await speaker.say(command, owner=heads.owner, to=published, about=text)
        return published.head

    async def commanded(
        self, command: RolloutCommand, rollout: RolloutId | None, owner: SignerName | None
    ) -> RolloutCheckpoint:
        """Return the checkpoint of the rollout that a command is for; see `look`."""
        async with self.fleet.connected() as kv:
            return (await look(self.heads(kv, owner), rollout, command)).head

    async def elsewhere(self, state: RolloutState, *, newest: bool) -> RolloutId | None:
        """Return what a command is for in place of a rollout that no process controls here.

        Args:
            state: Its state by the journal of this machine.
            newest: Whether a newer rollout of its caller is meant in its place.

        Returns:
            The newer rollout, or this one if it continued on another machine; `None` if neither
            is known.

        Raises:
            UnavailableError: The bus is unreachable, and the rollout is not over here.
        """
        mine, owner = state.began.id, SignerName.parse_caller(state.began.caller)
        try:
            async with self.fleet.connected() as kv:
                last = await self.heads(kv, owner).newest() if newest else None
                if last is not None and last.head.rollout > mine:
                    return last.head.rollout
            return mine if await self.newer_heads([state], lambda _: None) else None
        except UnavailableError as error:
            if state.over is None and not isinstance(error, RefusedError):
                raise
            return None

    async def newer_heads(
        self, states: Iterable[RolloutState], note: Callable[[str], None]
    ) -> dict[RolloutId, RolloutCheckpoint]:
        """Return the checkpoints of rollouts that continued on other machines.

        Args:
            states: The states of these rollouts by the journals of this machine.
            note: Receives why a checkpoint is rejected.
        """
        heads = {}
        async with self.fleet.connected() as kv:
            for state in states:
                rollout, owner = state.began.id, SignerName.parse_caller(state.began.caller)
                try:
                    kept = await self.heads(kv, owner).read(rollout)
                except (RefusedError, IntegrityError, InvalidInputError) as error:
                    note(f"rollout {rollout}: cannot tell whether it continued elsewhere: {error}")
                    continue
                if kept is not None and kept.head.epoch > state.epoch:
                    heads[rollout] = kept.head
        return heads


async def known_head(
    rollouts: FleetRollouts, rollout: RolloutId | None, owner: SignerName | None
) -> RolloutCheckpoint:
    """Return the checkpoint of a rollout; of the newest for `None`.

    The owner is this signer for `None`.

    Raises:
        InvalidInputError: The bus does not have it.
        IntegrityError: The checkpoint is not trusted.
    """
    async with rollouts.fleet.connected() as kv:
        heads = rollouts.heads(kv, owner)
        published = await (heads.newest() if rollout is None else heads.read(rollout))
        return (published or await heads.find(rollout)).head


async def known_heads(
    rollouts: FleetRollouts, owner: SignerName, *, most: int
) -> Sequence[RolloutCheckpoint]:
    """Return the trusted checkpoints of a caller, the newest rollouts first, up to `most`."""
    async with rollouts.fleet.connected() as kv:
        return await rollouts.heads(kv, owner).all(most=most)


class RolloutController:
    """Carries out rollouts in this root's signer's name.

    Args:
        node: The settings of the root.
        rollouts: The rollouts of this signer.
    """

    def __init__(self, node: NodeApp, rollouts: FleetRollouts) -> None:
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
            report_page.update(
                report_page.file_beside(self._node.settings.metrics),
                report,
                now=self._node.clock.now(),
            )
        except StateError as error:
            self._note(f"warning: the metrics cannot be written: {error}")


def site_server(
    node: NodeApp,
    *,
    ca: Path | None,
    certificate: Path | None,
    key: Path | None,
    default: str = "",
) -> Fetch:
    """Return a client for Puppet servers, with the node's own certificate by default.

    Args:
        node: The parts of the node.
        ca: The trusted authorities; `None` for those of the node's identity, `https_ca`, or the
            system's.
        certificate: A client certificate; requires `key`.
        key: Its key.
        default: The server, `HOST:PORT`, for a service without SRV records.
    """
    own = peers(node).identity
    shown = (certificate, key) if certificate is not None else (own.certificate, own.key)
    return ServiceFetch(
        lambda seconds: Https(
            ca=ca or own.ca or node.settings.https_ca,
            timeout=seconds,
            certificate=None if shown[0] is None or shown[1] is None else (shown[0], shown[1]),
        ),
        look_up=_look_up,
        timeout=node.settings.https_timeout,
        now=node.clock.monotonic,
        draw=secrets.randbelow,
        default=default,
    )


def _look_up(name: str) -> Sequence[Record]:
    """Return SRV records; dnspython (100 ms or more) is imported when first needed."""
    from localpuppet.rollout.site_file import look_up

    return look_up(name)
