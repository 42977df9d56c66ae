"""Carry a rollout out: ask nodes, receive their results, and record each event before acting on it.

    ready? -> hold -> stage -> (start -> end -> check)* -> release

- An event is in the journal before anything is done because of it.
- All nodes are released however this work ends, unless the process is killed or another
  controller takes the rollout over. After a kill, `run` with the journal's state continues.
- A node run may wait for the inventory entries of its node's producers.
- Holds are renewed while the rollout runs.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from itertools import islice

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.times import show_duration
from localpuppet.base.machine.waiting import wait_first
from localpuppet.fleet.inventory.outbox import MAX_AWAITED, AwaitedEntry
from localpuppet.rollout import events
from localpuppet.rollout.checking import CheckRunner
from localpuppet.rollout.commands import EventRecorder, SentCommand, meaning, refusal
from localpuppet.rollout.deciding import NextAction, can_do_without, decide, late, why_not_ready
from localpuppet.rollout.deliveries import NodeRunAnswer, Problems
from localpuppet.rollout.rollout_nodes import FleetNodes
from localpuppet.rollout.rollout_options import compare
from localpuppet.rollout.state import RolloutState

LOOKS = 5  # how often a node compares again because its last comparison is too old
AGAIN = 2.0  # seconds until an unresponsive node is asked again
# Seconds without a report until the node is asked: reports can be lost in an outage.
NEWS = 300.0
# Seconds between renewals of holds; a hold lasts five times as long (`events.HOLD`).
RENEW = 120.0
LETTING_GO = 2  # how often a node is asked to release its hold


def awaited_by(state: RolloutState, turn: events.NodeRun) -> tuple[AwaitedEntry, ...]:
    """Return the entries that a node run waits for, in the order in which their nodes ended."""
    if turn.step == state.step_back:
        return ()
    makers = state.makers_for(turn.node)
    newest_first = (
        entry
        for node, entry in reversed(state.entries.items())
        if node != turn.node and any(node in some for some in makers)
    )
    return tuple(islice(newest_first, MAX_AWAITED))[::-1]


@dataclass(slots=True, eq=False)
class NodeRunStarter:
    """The node runs that one process controls."""

    state: RolloutState
    nodes: FleetNodes
    on_event: Callable[[events.Event], None]
    _news: dict[events.NodeRun, asyncio.Event] = field(default_factory=dict, init=False)
    _ends: dict[events.NodeRun, events.NodeRunEnded] = field(default_factory=dict, init=False)
    _undecided: dict[events.NodeRun, tuple[int, asyncio.Event]] = field(
        default_factory=dict, init=False
    )

    def look_again(self) -> None:
        """Wake the node runs whose changes are approved by now."""
        for turn, (step, decided) in self._undecided.items():
            if self.state.is_decided(turn, step):
                decided.set()

    async def follow(self) -> None:
        """Receive the nodes' reports, for as long as this is awaited."""
        async for turn, end in self.nodes.ends():
            if turn in self._news:
                if end is not None:
                    self._ends[turn] = end
                self._news[turn].set()

    async def take(self, turn: events.NodeRun) -> None:
        """Have a node run, after its changes are approved if the rollout has an approval.

        A node runs only soon after the comparison. If it is too late, it compares again.
        """
        stale = False
        for _ in range(LOOKS):
            if not await self._clear(turn, again=stale):
                return
            end, stale = await self._run(turn)
            if not stale:
                break
        self.on_event(end)

    async def _clear(self, turn: events.NodeRun, *, again: bool) -> bool:
        """Have a node compare until all its changes are approved; return whether it may run.

        An operator approves an earlier comparison, so the node compares once more after that.
        """
        while again or self.state.looks(turn):
            again = False
            step, decided = self.state.look_step(turn), asyncio.Event()
            seen = await self._look(turn, step)
            self._undecided[turn] = step, decided
            self.on_event(seen)
            if isinstance(seen, events.NodeRunEnded):
                return False
            await decided.wait()
        return True

    async def _run(self, turn: events.NodeRun) -> tuple[events.NodeRunEnded, bool]:
        """Return the result of a run, and whether the node refused because of an old comparison."""
        state = self.state

        async def start() -> NodeRunAnswer:
            answer = await self.nodes.start(
                turn,
                epoch=state.epoch,
                serial=state.serials.get(turn.node, 0),
                after=awaited_by(state, turn),
                looked=state.looked.get(turn, 0),
            )
            is_new = bool(answer.problem) != (turn in state.unanswered)
            if turn.step == state.step_back and answer.end is None and is_new:
                self.on_event(events.NodeRunUnanswered(node_run=turn, problem=answer.problem))
            return answer

        end, asked = await self._ask(turn, start)
        return replace(end, node_run=turn), asked is not None and asked.look_again

    async def _look(
        self, turn: events.NodeRun, step: int
    ) -> events.ChangesPredicted | events.NodeRunEnded:
        """Return the comparison of a node's changes with the approval, or why it failed."""

        async def look() -> NodeRunAnswer:
            return await self.nodes.look(
                turn, epoch=self.state.epoch, step=step, after=awaited_by(self.state, turn)
            )

        end, _ = await self._ask(events.NodeRun(step, turn.node), look)
        predicted = end.predicted_changes
        if end.result is not events.NodeResult.SUCCEEDED:
            reason = f"before its run, with noop: {end.reason}"
            return replace(end, node_run=turn, reason=reason, predicted_changes=None)
        if predicted is None:
            return events.failed_run(turn, "did not report what it would change")
        if not predicted.whole:
            total = predicted.total
            return events.failed_run(
                turn, f"would change {total} properties: too many to be approved"
            )
        difference = compare(self.state.may_change(turn), predicted)
        return events.ChangesPredicted(node_run=turn, difference=difference)

    async def _ask(
        self, turn: events.NodeRun, ask: Callable[[], Awaitable[NodeRunAnswer]]
    ) -> tuple[events.NodeRunEnded, NodeRunAnswer | None]:
        """Ask a node repeatedly until it reports a result or the timeout is over.

        Most nodes are asked once: their own report has the complete result.
        """
        seconds = self.state.began.options.timeout
        news = self._news[turn] = asyncio.Event()
        problem = ""
        try:
            async with asyncio.timeout(seconds):
                while turn not in self._ends:
                    news.clear()
                    asked = await ask()
                    if asked.end is not None:
                        return asked.end, asked
                    problem = asked.problem
                    await wait_first(news, seconds=AGAIN if problem else NEWS)
                return self._ends.pop(turn), None
        except TimeoutError:
            reason = f"did not report within {show_duration(seconds)} how its run ended"
            if problem:
                reason += f": {problem}"
            return events.failed_run(turn, reason, events.NodeResult.UNRESPONSIVE), None
        finally:
            del self._news[turn]


def _not_ready(reason: str) -> events.RolloutEnded:
    return events.RolloutEnded(ending=events.RolloutEnding.NOT_READY, reason=reason, still_held={})


@dataclass(slots=True, eq=False)
class Execution:
    """Controls one rollout in this process."""

    state: RolloutState
    _: KW_ONLY
    notes: EventRecorder
    nodes: FleetNodes
    checks: CheckRunner
    on_event: Callable[[events.Event], None]
    # `None`: look again
    _events: asyncio.Queue[events.Event | None] = field(default_factory=asyncio.Queue, init=False)
    _taking: NodeRunStarter = field(init=False)
    _holding: bool = field(default=False, init=False)
    _interrupted: bool = field(default=False, init=False)
    _hurried: bool = field(default=False, init=False)
    _patience: asyncio.Task[None] | None = field(default=None, init=False)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list, init=False)
    _checking: set[events.NodeRun] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self._taking = NodeRunStarter(self.state, self.nodes, self._events.put_nowait)

    def stop(self, why: str) -> None:
        """Start no further nodes; running ones finish and are checked."""
        self._events.put_nowait(
            events.RolloutStopped(ending=events.RolloutEnding.STOPPED, reason=why)
        )

    def hand_over(self, to: events.RolloutTakenOver | None = None) -> None:
        """Keep the nodes on hold when this process ends: another controller has the rollout.

        It is `to`, if a node reported it.
        """
        self._holding = False
        if to is not None and self.state.overtaken is None:
            self._note(to)

    def interrupt(self, why: str) -> None:
        """Stop as `stop` does; the second call does not wait for running nodes."""
        self._hurried = self._interrupted
        self._interrupted = True
        self.stop(why)

    async def run(self, resumed: events.RolloutResumed | None = None) -> events.RolloutEnded:
        """Carry the rollout out and return its end.

        `resumed` is the new controller, if an earlier process began it; that one may have been
        killed at any point.
        """
        try:
            return await self._run(resumed)
        except BaseException:
            if self._holding:  # also if the journal cannot be written any more
                await self.nodes.release(self._held, epoch=self.state.epoch)
            raise

    async def give_up(self, why: str) -> events.RolloutEnded:
        """End a rollout that an earlier process left, and release its nodes.

        Node runs without a known result stay open: they may still be running.
        """
        return await self._let_go(events.RolloutEnding.STOPPED, why)

    async def give_back(self) -> events.RolloutEnded:
        """Release the nodes that a finished rollout kept, or that did not confirm their release.

        Nodes that do not confirm it now can be asked again.
        """
        over = self.state.over
        if over is None:
            raise AssertionError("a rollout keeps its nodes until it is over")
        asked = sorted({*over.held_for_investigation, *over.still_held})
        left = await self.nodes.release(asked, epoch=self.state.epoch)
        kept = tuple(node for node in over.held_for_investigation if node in left)
        return self._end(replace(over, held_for_investigation=kept, still_held=left))

    async def _run(self, resumed: events.RolloutResumed | None) -> events.RolloutEnded:
        if resumed is not None:
            self._note(resumed)
        if (over := await self._prepare()) is not None:
            return over
        async with asyncio.TaskGroup() as group:
            around = [
                group.create_task(self._taking.follow()),
                group.create_task(self._renew()),
                group.create_task(self.notes.hear(self._take_word)),
            ]
            over = await self._stage()
            if over is None:
                await self._drive(group)
            for task in (*around, *self._tasks):
                task.cancel()
        if over is not None:
            return over
        stopped = self.state.stopped
        if stopped is None:
            return await self._let_go(events.RolloutEnding.DONE, "")
        return await self._let_go(stopped.ending, stopped.reason)

    def _note(self, *events: events.Event) -> None:
        if not events:
            return
        self.notes.append(*events)
        for event in events:
            self.state.take(event)
            self.on_event(event)
        self._taking.look_again()

    def _end(self, over: events.RolloutEnded) -> events.RolloutEnded:
        self._note(over)
        return over

    @property
    def _held(self) -> list[NodeName]:
        return [node for node in self.state.nodes if node not in self.state.skipped]

    @property
    def _resumed(self) -> bool:
        return self.state.epoch > 1

    async def _prepare(self) -> events.RolloutEnded | None:
        """Hold all nodes; return the end of the rollout if that fails."""
        left = self.state.left
        self._holding = self._resumed
        try:
            problems = await self.nodes.ready(left)
        except UnavailableError as error:
            if not self._resumed:  # others can be resumed when the bus is reachable again
                self._end(_not_ready(str(error)))
            raise
        reported = self.nodes.last_runs()
        if reported.durations or reported.releases:
            self._note(reported)
        if not self._skip(problems):
            return await self._refuse(problems)
        self._holding = True
        problems = await self.nodes.hold(self._held, epoch=self.state.epoch)
        problems = {node: why for node, why in problems.items() if node in left}
        return None if self._skip(problems) else await self._refuse(problems)

    def _skip(self, problems: Problems) -> bool:
        """Leave out nodes that are not ready if options and state allow it; return whether so."""
        if not problems:
            return True
        if not can_do_without(self.state, problems):
            return False
        self._note(events.NodesSkipped(reasons=dict(sorted(problems.items()))))
        return True

    async def _refuse(self, problems: Problems) -> events.RolloutEnded:
        """End a rollout whose nodes are not ready; release them if they are on hold."""
        why = why_not_ready(self.state, problems)
        if self._resumed:
            return await self._let_go(events.RolloutEnding.STOPPED, f"not ready: {why}")
        if self._holding:
            return await self._let_go(events.RolloutEnding.NOT_READY, why)
        return self._end(_not_ready(why))

    async def _stage(self) -> events.RolloutEnded | None:
        """Stage the release on all nodes before one changes; return the end if that fails."""
        if self.state.began.options.delivery is None or self.state.serials:
            return None
        staging = asyncio.create_task(self.nodes.stage(self.state.left, epoch=self.state.epoch))
        try:
            while not staging.done():
                hearing = asyncio.create_task(self._events.get())
                await asyncio.wait([staging, hearing], return_when=asyncio.FIRST_COMPLETED)
                if not hearing.cancel():
                    self._hear([hearing.result()])
                if self.state.stopped is not None:
                    return None
        finally:
            staging.cancel()
        staged = staging.result()
        if not self._skip(staged.problems):
            return await self._refuse(staged.problems)
        if staged.problems:  # these nodes are left out, and on hold until now
            await self.nodes.release(staged.problems, epoch=self.state.epoch)
        self._note(events.StagingEnded(serials=staged.serials))
        return None

    async def _drive(self, group: asyncio.TaskGroup) -> None:
        """Start what is due and take events until nothing is running and nothing is due."""
        for turn in self.state.running:
            self._begin(group, turn)
        arrived: list[events.Event | None] = []
        while True:
            while not self._events.empty():
                arrived.append(self._events.get_nowait())
            self._hear(arrived)
            arrived = []
            now = decide(self.state)
            self._be_patient(group)
            if (decision := self._decision(now)) is not None:
                self._note(decision)
                continue
            self._act(group, now)
            if now.over:
                return
            arrived = [await self._events.get()]

    def _decision(self, now: NextAction) -> events.Event | None:
        """Return the event about the whole rollout that must be recorded before acting."""
        if now.stop:
            return events.RolloutStopped(ending=events.RolloutEnding.FAILED, reason=now.stop)
        if now.withdraw:
            return events.NodeRunsWithdrawn(node_runs=now.withdraw)
        ends = self.state.stopped is not None or self.state.goes_back
        if not ends and (why := late(self.state, now.start, self.notes.now())):
            return events.RolloutStopped(ending=events.RolloutEnding.STOPPED, reason=why)
        return None if now.pause is None else replace(now.pause, since=self.notes.now())

    def _act(self, group: asyncio.TaskGroup, now: NextAction) -> None:
        """Start the node runs and the checks that are due."""
        if now.start:
            self._note(events.NodeRunsStarted(node_runs=now.start))
            for turn in now.start:
                self._begin(group, turn)
        for turn in now.check:
            if turn not in self._checking:
                self._checking.add(turn)
                self._tasks.append(group.create_task(self._check(turn)))

    def _hear(self, arrived: Sequence[events.Event | None]) -> None:
        """Record events that arrived together, with one write for the results of many nodes."""
        changed = [self.state.as_it_is(event) for event in arrived if event is not None]
        self._note(*[event for event in changed if not isinstance(event, events.RolloutStopped)])
        if self.state.stopped is None:
            self._note(
                *[event for event in changed if isinstance(event, events.RolloutStopped)][:1]
            )
        if self._hurried:
            if looking := [turn for turn in self.state.running if self.state.looks(turn)]:
                self._note(events.NodeRunsWithdrawn(node_runs=tuple(looking)))
            for turn in self.state.running:
                self._note(
                    events.failed_run(turn, "was not awaited", events.NodeResult.UNRESPONSIVE)
                )
            for turn in self.state.unchecked:
                self._note(events.ChecksEnded(node_run=turn, problem="its checks were not awaited"))

    def _be_patient(self, group: asyncio.TaskGroup) -> None:
        """Start or cancel the deadline of a pause."""
        if self.state.paused is None:
            if self._patience is not None:
                self._patience.cancel()
            self._patience = None
        elif self._patience is None:
            self._patience = group.create_task(self._lose_patience(self.state.paused))
            self._tasks.append(self._patience)

    async def _lose_patience(self, paused: events.RolloutPaused) -> None:
        """Stop the rollout at the pause's deadline, counted from the start of the pause."""
        seconds = self.state.began.options.pause_at_most
        now = self.notes.now()
        gone = (now - (paused.since or now)).total_seconds()
        await asyncio.sleep(seconds - min(max(gone, 0.0), seconds))
        self.stop(f"no decision within {show_duration(seconds)}: {paused.reason}")

    def _begin(self, group: asyncio.TaskGroup, turn: events.NodeRun) -> None:
        self._tasks.append(group.create_task(self._taking.take(turn)))

    async def _check(self, turn: events.NodeRun) -> None:
        problem = await self.checks.problem(turn.node, self.state.checks(turn))
        self._events.put_nowait(events.ChecksEnded(node_run=turn, problem=problem))

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW)
            await self.nodes.hold(self._held, epoch=self.state.epoch)

    def _take_word(self, sent: SentCommand) -> str:
        """Take an operator's command; return why it is rejected, or empty once it is recorded."""
        if problem := refusal(sent, self.state):
            return problem
        event = meaning(sent, self.state)
        self._note(
            replace(event, since=self.notes.now())
            if isinstance(event, events.RolloutPaused)
            else event
        )
        self._events.put_nowait(None)
        return ""

    async def _let_go(self, ending: events.RolloutEnding, why: str) -> events.RolloutEnded:
        kept = await self._keep()
        left: Problems = dict.fromkeys([node for node in self._held if node not in kept], "")
        for _ in range(LETTING_GO):
            left = await self.nodes.release(list(left), epoch=self.state.epoch)
            if not left:
                break
        if self.state.began.options.investigate is not None:
            # They may stay on hold although their reply was lost: `give_back` asks them.
            kept += tuple(node for node in left if node in self.state.failed)
        return self._end(
            events.RolloutEnded(
                ending=ending, reason=why, still_held=dict(left), held_for_investigation=kept
            )
        )

    async def _keep(self) -> tuple[NodeName, ...]:
        """Extend the holds of failed nodes if the options say so; return the confirmed ones."""
        seconds = self.state.began.options.investigate
        failed = [node for node in self._held if node in self.state.failed]
        if seconds is None or not failed:
            return ()
        problems = await self.nodes.hold(failed, epoch=self.state.epoch, seconds=seconds)
        return tuple(node for node in failed if node not in problems)
