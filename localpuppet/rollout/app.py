"""The parts of a rollout: journals, checkpoints on the bus, nodes, sites, and signals."""

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import closing
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
from localpuppet.base.formats.names import NodeName, RolloutId, SignerName
from localpuppet.base.formats.text import shown_names
from localpuppet.base.formats.times import show_time
from localpuppet.fleet.app import FleetApp, machine_name
from localpuppet.fleet.bus.key_value import KeyValue, RefusedError
from localpuppet.fleet.requests.request_client import RequestClient
from localpuppet.fleet.trust.policy import TAKEOVER, refusal
from localpuppet.node.app import NodeApp
from localpuppet.node.enc.input import Fetch, Https
from localpuppet.rollout import events
from localpuppet.rollout.checking import CheckRunner, Probing
from localpuppet.rollout.checkpoints import CheckpointKeeper, RolloutCheckpoint, RolloutCheckpoints
from localpuppet.rollout.commands import (
    LOOKS,
    PACE,
    BusCommandReader,
    EventRecorder,
    RolloutCommand,
    SentCommand,
    identify_pause,
    look,
    read_commands,
    send_here,
    send_over_bus,
)
from localpuppet.rollout.deciding import can_do_without, why_not_ready
from localpuppet.rollout.executing import Execution
from localpuppet.rollout.journal import JournalReader, Journals, JournalWriter
from localpuppet.rollout.resuming import head_of, heed_refusal, take_up
from localpuppet.rollout.rollout_nodes import FleetNodes
from localpuppet.rollout.rollout_report import RolloutReport, update_metrics
from localpuppet.rollout.site_file import ServiceFetch, look_up
from localpuppet.rollout.state import RolloutState

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Events after which the metrics are updated; these then include the results of nodes, too.
_MEASURED = (
    events.RolloutResumed,
    events.RolloutPaused,
    events.RolloutContinued,
    events.ChangesApproved,
    events.RolloutStopped,
    events.RolloutEnded,
)
ExecutionWork = Callable[[Execution], Coroutine[Any, Any, events.RolloutEnded]]


class RolloutApp:
    """The rollouts of this root's signer, and those of others that it may take over."""

    def __init__(self, node: NodeApp) -> None:
        self._node = node
        self.fleet = FleetApp(node)

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

    def checkpoints(self, kv: KeyValue, owner: SignerName | None = None) -> RolloutCheckpoints:
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
            return refusal(FleetApp(self._node).peers.policy, caller, TAKEOVER)
        except LocalpuppetError as error:
            return str(error)

    async def addressed(
        self, rollout: RolloutId | None, owner: SignerName | None
    ) -> tuple[RolloutId | None, JournalReader | None]:
        """Return the rollout that a command is for, and its journal if its newest state is here.

        Without an id it is the newest rollout of its caller (`owner`), even if that is over: a
        command never falls back to an older one. An id of `None` is the newest on the bus. The
        receiver closes the journal.
        """
        caller = self.caller if owner is None else owner.caller
        for rollout_id in self.journals.ids():
            if rollout not in (None, rollout_id):
                continue
            journal = self.journals.open(rollout_id)
            taken, state = journal.taken, journal.state()
            if state.began.caller == caller:
                if taken or (rollout is not None and not state.resumable):
                    return rollout_id, journal
                elsewhere = await self._elsewhere(state, newest=rollout is None)
                return (elsewhere, None) if elsewhere else (rollout_id, journal)
            journal.close()
        return rollout, None

    async def send(
        self,
        command: RolloutCommand,
        rollout: RolloutId | None,
        owner: SignerName | None,
        *,
        about: Callable[[RolloutState], str],
    ) -> None:
        """Send a command to the controller of a rollout (the newest for `None`) on another machine.

        `about` returns what the command refers to, from the state in the checkpoint.

        Raises:
            InvalidInputError: There is no such rollout, or the controller rejected the command.
            UnavailableError: The bus is unreachable, or the controller did not reply.
            IntegrityError: The checkpoint is not trusted.
        """
        async with self.fleet.connected() as kv:
            checkpoints = self.checkpoints(kv, owner)
            published = await look(checkpoints, rollout, command)
            state = published.head.state
            sent = self.sent(command, "" if state is None else about(state))
            await send_over_bus(
                kv,
                sent,
                owner=checkpoints.owner,
                to=published,
                signer=self.fleet.signer,
                verifier=self.fleet.verifier,
                clock=self._node.clock,
            )

    async def continue_paused(self, rollout: RolloutId | None, owner: SignerName | None) -> bool:
        """Have the controller of a paused rollout continue it; return whether it does.

        It does not if the rollout is not paused, or if no controller replies: `resume` takes the
        rollout over then. A note says so first.
        """
        found, journal = await self.addressed(rollout, owner)
        if journal is not None:
            with closing(journal):
                state = journal.state()
                if journal.taken and state.waits:
                    await send_here(
                        journal, self.sent(RolloutCommand.CONTINUE, identify_pause(state))
                    )
                    return True
                if not journal.taken and state.over is None:
                    self._note(f"no process controls rollout {state.began.id}: taking it over")
            return False
        async with self.fleet.connected() as kv:
            checkpoints = self.checkpoints(kv, owner)
            for _ in range(LOOKS):  # a checkpoint lags behind
                published = await (
                    checkpoints.newest(resumable=True) if found is None else checkpoints.read(found)
                )
                known = None if published is None else published.head.state
                if published is None or known is None or known.over is not None:
                    return False
                found, controller = published.head.rollout, f"the controller of {published.signer}"
                if known.waits:
                    break
                await asyncio.sleep(PACE)
            else:
                self._note(f"taking rollout {found} over from {controller}")
                return False
        try:
            await self.send(RolloutCommand.CONTINUE, found, owner, about=identify_pause)
        except UnavailableError as error:
            self._note(f"{error.what}: taking rollout {found} over from {controller}")
            return False
        return True

    def sent(self, command: RolloutCommand, about: str) -> SentCommand:
        """Return a command of this signer on this machine; `about` is what it refers to."""
        machine = machine_name()
        return SentCommand(command=command, caller=self.caller, machine=machine, about=about)

    async def rollback_of(
        self, rollout: RolloutId | None, owner: SignerName | None
    ) -> tuple[RolloutId, RolloutState | None]:
        """Return the rollout that a rollback is for, and its state as far as it is known here."""
        wanted, journal = await self.addressed(rollout, owner)
        if journal is not None:
            with closing(journal):
                state = journal.state()
            return state.began.id, state
        async with self.fleet.connected() as kv:
            head = (await look(self.checkpoints(kv, owner), wanted, RolloutCommand.ROLLBACK)).head
        # Without events, its journal is too large for the bus.
        return head.rollout, head.state

    async def _elsewhere(self, state: RolloutState, *, newest: bool) -> RolloutId | None:
        """Return the rollout that a command is for, if no process controls this one here.

        That is its caller's newer rollout, or this one if it continued on another machine.
        """
        mine, owner = state.began.id, SignerName.parse_caller(state.began.caller)
        try:
            async with self.fleet.connected() as kv:
                last = await self.checkpoints(kv, owner).newest() if newest else None
                if last is not None and last.head.rollout > mine:
                    return last.head.rollout
            return mine if await self.newer_checkpoints([state], lambda _: None) else None
        except UnavailableError as error:
            if state.over is None and not isinstance(error, RefusedError):
                raise
            return None

    async def newer_checkpoints(
        self, states: Iterable[RolloutState], note: Callable[[str], None]
    ) -> dict[RolloutId, RolloutCheckpoint]:
        """Return the checkpoints of rollouts that continued on other machines.

        `states` are by the journals of this machine; `note` receives why a checkpoint is rejected.
        """
        checkpoints = {}
        async with self.fleet.connected() as kv:
            for state in states:
                rollout, owner = state.began.id, SignerName.parse_caller(state.began.caller)
                try:
                    kept = await self.checkpoints(kv, owner).read(rollout)
                except (RefusedError, IntegrityError, InvalidInputError) as error:
                    note(f"rollout {rollout}: cannot tell whether it continued elsewhere: {error}")
                    continue
                if kept is not None and kept.head.epoch > state.epoch:
                    checkpoints[rollout] = kept.head
        return checkpoints

    async def known_checkpoint(
        self, rollout: RolloutId | None, owner: SignerName
    ) -> RolloutCheckpoint:
        """Return the trusted checkpoint of a rollout; of the newest for `None`."""
        async with self.fleet.connected() as kv:
            return (await self.checkpoints(kv, owner).known(rollout)).head

    async def known_checkpoints(self, owner: SignerName, *, most: int) -> list[RolloutCheckpoint]:
        """Return the trusted checkpoints of a caller, the newest rollouts first, up to `most`."""
        async with self.fleet.connected() as kv:
            return await self.checkpoints(kv, owner).all(most=most)

    def failed_in(self, rollout: RolloutId) -> tuple[RolloutState, frozenset[NodeName]]:
        """Return the state of a finished rollout here, and its nodes that did not succeed."""
        with closing(self.journals.open(rollout)) as journal:
            report = journal.report()
        if report.state.over is None:
            raise InvalidInputError(
                f"is not over: {report.word}", where=str(rollout), hint="resume it, or stop it"
            )
        results = report.state.results()
        nodes = frozenset(node for node, result in results.items() if result in events.REPEATED)
        if not nodes:
            raise InvalidInputError("no node failed: nothing to repeat", where=str(rollout))
        return report.state, nodes

    async def begin(
        self, began: events.RolloutBegan, on_event: Callable[[events.Event], None]
    ) -> JournalReader:
        """Carry a new rollout out to its end and return its journal.

        Raises:
            UnavailableError: The bus is unreachable; nothing changed.
            BusyError: The rollout was resumed elsewhere.
        """
        async with self.fleet.connected() as kv:
            now = self._node.clock.now()
            self.journals.forget(now)
            with closing(self.journals.begin(began, at=show_time(now))) as journal:
                on_event(began)
                await self._carry_out(kv, journal, Execution.run, on_event)
        return journal

    async def resume(
        self,
        rollout: RolloutId | None,
        on_event: Callable[[events.Event], None],
        *,
        replay: Callable[[Sequence[events.Event]], None],
        owner: SignerName | None = None,
        commands: bool = False,
    ) -> JournalReader:
        """Resume a rollout (the newest that can be for `None`) to its end and return its journal.

        `replay` receives the events so far. `commands` is whether checks of another caller's
        rollout (`owner`) may run commands as this user.

        Raises:
            BusyError: Another process controls it.
            InvalidInputError: It is over, unknown, or cannot be taken over.
            IntegrityError: Its checkpoint on the bus is not trusted.
        """
        async with self.fleet.connected() as kv:
            checkpoints = self.checkpoints(kv, owner)
            own = checkpoints.owner == self.fleet.signer.name
            journal, epoch, revision = await take_up(
                rollout,
                journals=self.journals,
                heads=checkpoints,
                problem=None if own else partial(self._not_to_be_taken, kv, commands=commands),
                note=self._note,
            )
            with closing(journal):
                journal.forget_commands()
                replay([event for _, event in journal.events()])
                on_event(journal.state().began)
                by = events.RolloutResumed(epoch=epoch, caller=self.caller, machine=machine_name())
                work = partial(Execution.run, resumed=by)
                await self._carry_out(kv, journal, work, on_event, revision)
        return journal

    async def release(self, rollout: RolloutId) -> None:
        """End a rollout that no process controls, or release the nodes that a finished one kept."""
        async with self.fleet.connected() as kv:
            with closing(self.journals.take(rollout)) as journal:
                give_up = partial(Execution.give_up, why=f"stopped by {self.caller}")
                work = Execution.give_back if journal.state().over else give_up
                await self._carry_out(kv, journal, work)

    async def _not_to_be_taken(self, kv: KeyValue, state: RolloutState, *, commands: bool) -> str:
        """Return why this process or the nodes reject a takeover; empty if they do not."""
        if state.commands and not commands:
            return f"its checks would run {shown_names(state.commands)} as you (--run-checks)"
        problems = await self._nodes(kv, self.fleet.requests(kv), state.began).ready(state.left)
        return "" if can_do_without(state, problems) else why_not_ready(state, problems)

    def _nodes(self, kv: KeyValue, client: RequestClient, began: events.RolloutBegan) -> FleetNodes:
        verifier = self.fleet.verifier
        return FleetNodes(kv, client=client, verifier=verifier, began=began, note=self._note)

    def _note(self, text: str) -> None:
        self._node.observe("").note(text)

    async def _supervise(
        self, execution: Execution, work: ExecutionWork, keeper: CheckpointKeeper
    ) -> None:
        """Do the work and keep the checkpoint on the bus, until another has its epoch."""
        working = asyncio.create_task(work(execution))
        keeping = asyncio.create_task(keeper.run())
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

    async def _carry_out(
        self,
        kv: KeyValue,
        journal: JournalWriter,
        work: ExecutionWork,
        on_event: Callable[[events.Event], None] = lambda _: None,
        revision: int | None = None,
    ) -> None:
        """Control a rollout in this process, which signals interrupt."""
        state = journal.state()
        client = self.fleet.requests(kv)
        keeper = CheckpointKeeper(
            self.checkpoints(kv, SignerName.parse_caller(state.began.caller)),
            state.began.id,
            current=lambda: head_of(journal),
            revision=revision,
            note=self._note,
        )
        keeper.changed()
        bus = BusCommandReader(
            kv,
            signer=self.fleet.signer,
            verifier=self.fleet.verifier,
            journal=journal,
            denied=self._denied,
            clock=self._node.clock,
        )

        def receive(event: events.Event) -> None:
            on_event(event)
            if isinstance(event, _MEASURED):
                self._measure(journal, running=True)

        execution = Execution(
            state,
            notes=EventRecorder(
                journal,
                self._node.clock,
                changed=keeper.changed,
                sources=(partial(read_commands, journal, machine=machine_name()), bus.read),
            ),
            nodes=self._nodes(kv, client, state.began),
            checks=CheckRunner(Probing(ca=self._node.settings.https_ca)),
            on_event=receive,
        )

        async def believes(takeover: events.RolloutTakenOver) -> bool:
            if await keeper.is_ours():
                return False
            execution.hand_over(takeover)
            return True

        client.heed_refusals(partial(heed_refusal, client, state.began, believes))
        self._measure(journal, running=True)
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, execution.interrupt, f"stopped by {number.name}")
        try:
            async with client.together():
                await self._supervise(execution, work, keeper)
        finally:
            for number in SIGNALS:
                loop.remove_signal_handler(number)
            self._measure(journal, running=False)

    def _measure(self, journal: JournalReader, *, running: bool) -> None:
        """Update the metrics of a rollout; a failure to write them does not stop it."""
        try:
            report = RolloutReport.of(journal.events(), taken=running)
            update_metrics(self._node.settings.metrics, report, now=self._node.clock.now())
        except StateError as error:
            self._note(f"warning: the metrics cannot be written: {error}")


def site_server(
    node: NodeApp, *, ca: Path | None, certificate: Path | None, key: Path | None, default: str = ""
) -> Fetch:
    """Return a client for Puppet servers; certificate and authorities are the node's by default.

    `default` is the server, `HOST:PORT`, for a service without SRV records.
    """
    own = FleetApp(node).peers.identity
    if certificate is None:
        certificate, key = own.certificate, own.key
    return ServiceFetch(
        lambda seconds: Https(
            ca=ca or own.ca or node.settings.https_ca,
            timeout=seconds,
            certificate=None if certificate is None or key is None else (certificate, key),
        ),
        look_up=look_up,
        timeout=node.settings.timeouts.https,
        now=node.clock.monotonic,
        default=default,
    )
