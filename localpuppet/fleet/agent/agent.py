"""The agent's loop: it turns causes into runs, one run at a time, and loses no cause.

    receive -> admit -> write to the inbox -> coalesce -> (hold?) -> run -> settle

- A cause is in the inbox before it counts. The agent removes the cause after it has logged that the
  cause was dropped, or when a run that started after the cause has ended.
- If the inbox cannot be written, the agent ends with an error, because a cause could get lost.
- A malformed message raises no error.
"""

import asyncio
import math
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from localpuppet.base.errors import LocalpuppetError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.times import show_time
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.ports import Clock, LineKind, Log
from localpuppet.base.machine.waiting import wait_first
from localpuppet.base.value import Value
from localpuppet.fleet.triggers.cause import (
    INTERRUPTED,
    MOST,
    CauseKind,
    RunCause,
    TriggerOutcome,
    of_run,
)
from localpuppet.fleet.triggers.coalescing import Batch, Coalescer, DroppedCause, Steps
from localpuppet.fleet.triggers.inbox import Inbox
from localpuppet.fleet.triggers.trigger_admission import (
    AdmittedTrigger,
    DroppedTrigger,
    SignedAdmission,
)
from localpuppet.node.runs.holds import HoldStatus
from localpuppet.node.runs.run import RunState
from localpuppet.node.runs.run_records import Records

Work = TypeVar("Work", contravariant=True)
# Seconds until the agent tries a run again while another run uses the node, and until it notices
# the end of a hold.
AGAIN = 1.0
# The same while a rollout step waits for entries of other nodes.
SOON = 0.2
CONTENDED = 300.0  # seconds for which another agent counts after it was noticed
# The longest sleep in seconds: it limits the time until the watchdog is fed, a changed clock is
# noticed, and a new hold on this node is published.
LONGEST_SLEEP = 2.0
MANY = 10  # above this number, dropped causes with the same reason share a log line
IDS_A_LINE = 20
NO_RUN = "no run could be started ('localpuppet status' on that node says why)"
NOT_ACCEPTED = 8  # senders whose newest trigger that was not accepted is published
REMEMBERED = 3600  # seconds for which the agent remembers a cause that this node made


class RequestedRunResult(StrEnum):
    """Whether a requested run started and ended."""

    OVER = "over"  # it started and has ended
    BUSY = "busy"  # it did not start: another run uses the node, or the node is on hold
    IMPOSSIBLE = "impossible"  # it did not start, and would not if it were tried again


class RunCompletion(Value):
    result: RequestedRunResult
    run: str | None = None
    outcome: str = ""
    reason: str = ""
    details: Mapping[str, Json] = field(default_factory=dict)


class RunOrder(Value):
    """What a run is for.

    Attributes:
        causes: `Batch.to_dict()` with all `paths`: what the record keeps.
        through: The owner of the hold that does not stop the run; `None` if every hold does.
    """

    causes: Mapping[str, Any]
    text: str
    noop: bool = False
    puppet_tags: tuple[str, ...] = ()
    through: str | None = None


class RunObstacles(Value):
    """What prevents a due run from starting.

    - `lacking` returns the entries that a step waits for and that this node does not have
      (`Steps`).
    - `begun` returns the state of the run of a cause that an earlier agent began (`RestoredSteps`).
    """

    held: Callable[[], HoldStatus | None]
    lacking: Callable[[RunCause], str] = lambda _: ""
    begun: "Callable[[RunCause], RunCompletion | None]" = lambda _: None


class WorkRunner(Protocol[Work]):
    """Executes one kind of work, such as compiling a catalog; see `agent.fork_runner`."""

    async def run(self, order: Work) -> RunCompletion:
        """Do the work and return its result, `OVER` if it was done; exceptions are bugs."""


class Runner(WorkRunner[RunOrder], Protocol):
    """Executes runs, one at a time."""

    def end(self) -> None:
        """End the run in progress as TERM does."""


_UNKNOWN = RunCompletion(
    result=RequestedRunResult.OVER,
    outcome=INTERRUPTED,
    reason="the agent was killed during the run",
)


class RestoredSteps:
    """The steps whose result this agent has not reported yet."""

    def __init__(self, begun: Callable[[RunCause], RunCompletion | None]) -> None:
        self._begun = begun
        self._running: list[RunCause] = []

    def add(self, cause: RunCause) -> None:
        """Add a step that began."""
        self._running.append(cause)

    def take_ended(self) -> list[tuple[RunCause, RunCompletion]]:
        """Return each step whose run has ended, once."""
        ended = [(cause, self._begun(cause) or _UNKNOWN) for cause in self._running]
        self._running = [cause for cause, end in ended if end.result is RequestedRunResult.BUSY]
        return [(cause, end) for cause, end in ended if end.result is not RequestedRunResult.BUSY]


def recorded_end(records: Records, cause: RunCause) -> RunCompletion | None:
    """Return the recorded result of the run of a cause; `BUSY` while it is running."""
    status = records.caused_by(cause.sender, cause.uuid)
    if status is None:
        return None
    over = status.state is RunState.FINISHED
    return RunCompletion(
        result=RequestedRunResult.OVER if over else RequestedRunResult.BUSY,
        run=status.id,
        outcome=str(status.outcome or ""),
        reason=status.reason,
    )


class Agent:
    """One node's agent."""

    def __init__(
        self,
        *,
        admission: SignedAdmission,
        inbox: Inbox,
        runner: Runner,
        obstacles: RunObstacles,
        clock: Clock,
        log: Log,
    ) -> None:
        self.me = admission.admission.me
        self._admission = admission
        self._inbox = inbox
        self._runner = runner
        self._held = obstacles.held
        self._clock = clock
        self._log = log
        owed = inbox.causes()
        self._steps = Steps(obstacles.lacking)
        self._coalescer = Coalescer.restore(
            cause for cause in owed if cause.kind is not CauseKind.ROLLOUT
        )
        if owed:
            log.info(f"{len(owed)} causes that an earlier agent accepted wait for a run")
        for cause in owed:
            log.debug(f"still waiting for a run: a {_shown(cause)}")
        self._wake = asyncio.Event()
        self._again_at = 0.0
        self.blocked = ""  # why the node was busy when the agent last tried a run
        self._was_held: HoldStatus | None = None
        self._changed: list[asyncio.Event] = []
        self.last: RunCompletion | None = None
        # This includes causes that an earlier agent settled: a run may have restarted the agent
        # while others wait for the result.
        self.outcomes: deque[TriggerOutcome] = deque(inbox.outcomes(), maxlen=MOST)
        # The newest trigger of a sender that was not accepted, in memory only: its sender may wait
        # for the reason. Senders may be forged, so these never displace an outcome.
        self.not_accepted: dict[str, TriggerOutcome] = {}
        self._published_at = -math.inf
        self._other_since, self._other_at = "", -math.inf
        self._restored = RestoredSteps(obstacles.begun)
        for cause in owed:
            if cause.kind is CauseKind.ROLLOUT:
                (self._restored if inbox.began(cause.id) else self._steps).add(cause)
        self._settle_restored()

    @property
    def running(self) -> Batch | None:
        """Return the causes of the run in progress."""
        return self._coalescer.running

    @property
    def is_running(self) -> bool:
        """Return whether a run is in progress."""
        return self.running is not None

    @property
    def waiting(self) -> Batch | None:
        """Return the causes that wait for the next run."""
        return self._coalescer.waiting

    def receive_triggers(self, tokens: Sequence[bytes]) -> None:
        """Admit signed triggers from the bus and write the admitted ones to disk."""
        admitted: dict[str, AdmittedTrigger] = {}
        for token in tokens:
            verdict = self._admission.admit(token)
            if isinstance(verdict, DroppedTrigger):
                say = self._log.debug if verdict.quiet else self._log.warning
                trigger = verdict.trigger
                which = f" of {trigger.hostname} ({trigger.uuid})" if trigger else ""
                say(f"dropped a trigger{which}: {verdict.reason}", kind=LineKind.STRANGER)
                self._admission.record_dropped(verdict)
                if trigger is not None and not verdict.quiet:
                    self._report_not_accepted(RunCause.of_trigger(trigger), verdict.reason)
            elif verdict.cause.id not in admitted:
                problem = self._coalescer.problem(verdict.cause)
                self._admission.record_accepted(verdict.cause, problem=problem or "")
                if problem:
                    self._log.warning(
                        f"dropped a {_shown(verdict.cause)}: {problem}", kind=LineKind.STRANGER
                    )
                    self._report_not_accepted(verdict.cause, problem)
                else:
                    admitted[verdict.cause.id] = verdict
        self._accept([(verdict.cause, verdict.remember_until) for verdict in admitted.values()])

    def _report_not_accepted(self, cause: RunCause, reason: str) -> None:
        """Publish why a trigger was not accepted, at once or with the next presence.

        A trigger that was accepted before has its own outcome: it may only be listed again.
        """
        if self._inbox.seen(cause.id):
            return
        self.not_accepted.pop(cause.sender, None)
        while len(self.not_accepted) >= NOT_ACCEPTED:
            del self.not_accepted[next(iter(self.not_accepted))]
        self.not_accepted[cause.sender] = TriggerOutcome.dropped(cause.id, reason)
        now = self._clock.monotonic()
        if now >= self._published_at + AGAIN:  # a flood of these costs one message a second
            self._published_at = now
            self._tell()

    def request_run(
        self,
        kind: CauseKind,
        *,
        sender: str = "",
        noop: bool = False,
        puppet_tags: Sequence[str] = (),
        good_for: float | None = None,
        request: str = "",
    ) -> str | None:
        """Accept a cause of this node: a timer, a person on this node, or a request.

        Args:
            good_for: Seconds that the cause waits for a hold to end; `None` for no limit.
            request: The id of the request, by which its sender finds the outcome; empty for none.

        Returns:
            Why the agent rejects the cause, or `None`.
        """
        now = int(self._clock.now().timestamp())
        cause = RunCause(
            kind=kind,
            sender=sender or self.me,
            uuid=request or str(uuid.uuid4()),
            timestamp=now,
            expires=None if good_for is None else now + int(good_for),
            noop=noop,
            puppet_tags=tuple(puppet_tags),
        )
        problem = self._coalescer.problem(cause)
        if problem is None:
            self._accept([(cause, now)])
        return problem

    def react(self, causes: Sequence[RunCause]) -> None:
        """Accept causes that this node made from changes on other nodes; see `Host`."""
        fresh = [cause for cause in causes if not self._inbox.seen(cause.id)]
        taken = []
        for cause in fresh:
            problem = self._coalescer.problem(cause)
            if problem is None:
                taken.append((cause, cause.timestamp + REMEMBERED))
            else:
                self._log.warning(f"dropped a {_shown(cause)}: {problem}", kind=LineKind.CAUSE)
        self._accept(taken)

    def take_step(self, cause: RunCause) -> None:
        """Accept a rollout step that is in the inbox already: the step runs alone, and once."""
        self._steps.add(cause)
        self._log.info(f"accepted {_shown(cause)}", kind=LineKind.ACCEPTED)
        self._wake.set()

    def _settle_restored(self) -> None:
        """Settle the steps that an earlier agent began and whose runs have ended."""
        for cause, end in self._restored.take_ended():
            outcomes = of_run({cause.id: cause.timestamp}, run=end.run, outcome=end.outcome)
            self._take_out(outcomes, {cause.id: end.reason})
            line = f"{_shown(cause)} {end.outcome}: {end.reason or end.run}"
            self._log.warning(line, kind=LineKind.RUN)
            self._tell()

    def owes(self, causes: Iterable[str]) -> bool:
        """Return whether one of these cause ids waits for its run to start."""
        waiting = self.waiting
        return waiting is not None and any(cause in waiting for cause in causes)

    def _accept(self, causes: Sequence[tuple[RunCause, int]]) -> None:
        if not causes:
            return
        self._inbox.accept(causes)
        for cause, _ in causes:
            self._coalescer.accept(cause)
            self._log.info(f"accepted a {_shown(cause)}", kind=LineKind.ACCEPTED)
        self._wake.set()

    def note_other_agent(self) -> None:
        """Note that another agent publishes as this node; it counts for `CONTENDED` seconds."""
        if self.other_agent_since is None:
            self._other_since = show_time(self._clock.now())
            self._log.warning(
                "another agent publishes as this node: two machines have its name and key (give the"
                " copy another name in 'node:', and run 'localpuppet keys init' there)"
            )
        self._other_at = self._clock.monotonic()

    @property
    def other_agent_since(self) -> str | None:
        """When an agent with this node's name was noticed; `None` without one in recent minutes."""
        ago = self._clock.monotonic() - self._other_at
        return self._other_since if ago < CONTENDED else None

    def paths(self) -> tuple[tuple[NodeName, ...], ...]:
        """Return the paths of the causes of the run in progress; `((),)` without a run."""
        return self.running.paths if self.running else ((),)

    def subscribe(self) -> asyncio.Event:
        """Return an event that is set on each change; the subscriber clears it."""
        event = asyncio.Event()
        event.set()
        self._changed.append(event)
        return event

    def recheck(self) -> None:
        """Check again and notify subscribers: a foreign Puppet run or a hold has changed."""
        self._wake.set()
        self._tell()

    async def work(
        self, stop: asyncio.Event, *, alive: Callable[[], None], pulse: float = LONGEST_SLEEP
    ) -> None:
        """Execute runs until `stop` is set and the run in progress has ended.

        Args:
            alive: Called at least every `pulse` seconds, as a sign of life.
            pulse: The longest time in seconds between two calls of `alive` and two checks of holds.
        """
        run: asyncio.Task[RunCompletion] | None = None
        while True:
            alive()
            held = self._look_at_holds()
            self._settle_restored()
            if run is not None and run.done():
                self._settle(run.result())
                run = None
            if run is None:
                if stop.is_set():
                    return
                run = self._step(held)
            await self._sleep(run, stop, pulse)

    def _next(self, held: HoldStatus | None) -> Batch | None:
        """Return the batch that is due, and drop expired causes."""
        look = self._steps.look(held, now=self._clock.now().timestamp())
        self._drop(look.dropped)
        if look.due is not None:
            self._inbox.set_began(look.due.id, began=True)
            return self._coalescer.run_alone(look.due)
        if held is not None and held.alone:
            return None
        step = self._coalescer.step(
            self._clock.now().timestamp(), held=None if held is None else held.reason
        )
        self._drop(step.dropped)
        return step.start

    def _step(self, held: HoldStatus | None) -> "asyncio.Task[RunCompletion] | None":
        """Start the run that is due, and drop expired causes."""
        if self._clock.monotonic() < self._again_at:
            return None
        batch = self._next(held)
        if batch is None:
            self.blocked = ""
            return None
        order = RunOrder(
            causes={**batch.to_dict(), "paths": [list(path) for path in batch.paths]},
            text=str(batch),
            noop=batch.noop,
            puppet_tags=batch.puppet_tags,
            through=batch.rollout,
        )
        say = self._log.debug if self.blocked else self._log.info
        say(f"running for {batch}")
        for start in range(0, len(batch.ids), IDS_A_LINE):
            self._log.debug(
                f"this run's causes: {' '.join(batch.ids[start : start + IDS_A_LINE])}",
                kind=LineKind.RUN,
            )
        self._tell()
        return asyncio.create_task(self._runner.run(order))

    def _look_at_holds(self) -> HoldStatus | None:
        """Return what blocks runs now, or `None`; notify subscribers when it changes."""
        try:
            held = self._held()
        except LocalpuppetError as error:
            held = HoldStatus(reason=str(error))  # an unreadable hold counts as a hold
        if held != self._was_held:
            self._was_held = held
            self._tell()
        return held

    def _settle(self, end: RunCompletion) -> None:
        batch = self.running
        if end.result is RequestedRunResult.BUSY:
            say = self._log.debug if self.blocked else self._log.info
            say(f"postponed the run, trying again soon: {end.reason}", kind=LineKind.RUN)
            self._put_back(batch)
            self._again_at = self._clock.monotonic() + AGAIN
        elif end.result is RequestedRunResult.IMPOSSIBLE:
            self._log.warning(f"no run for {batch}: {end.reason}", kind=LineKind.RUN)
            # The reason may name what only this node may see.
            self._drop(self._coalescer.give_up(end.reason), published=NO_RUN)
        else:
            sent = batch.timestamps if batch else {}
            outcomes = of_run(sent, run=end.run, outcome=end.outcome)
            self._take_out(outcomes, dict.fromkeys(self._coalescer.ended(), end.reason))
            # Logged after the write: once this line is logged, no second run follows for these
            # causes, even after a kill.
            reason = f": {end.reason}" if end.reason else ""
            self._log.info(
                f"run {end.run or '(no record)'} {end.outcome}{reason}", kind=LineKind.RUN
            )
        busy = end.result is RequestedRunResult.BUSY
        self.blocked = (end.reason or "busy") if busy else ""
        self.last = self.last if busy else end
        self._tell()

    def _put_back(self, batch: Batch | None) -> None:
        """Put the causes of a run that did not start back into the queue."""
        if batch is None or batch.rollout is None:
            self._coalescer.put_back()
            return
        for cause_id in self._coalescer.ended():  # a rollout step waits with the other steps
            self._inbox.set_began(cause_id, began=False)

    def _drop(self, dropped: Sequence[DroppedCause], *, published: str = "") -> None:
        reasons = Counter(drop.reason for drop in dropped)
        for reason, count in reasons.items():
            if count > MANY:
                self._log.warning(f"dropped {count} causes: {reason}", kind=LineKind.CAUSE)
        for drop in dropped:
            say = self._log.debug if reasons[drop.reason] > MANY else self._log.warning
            say(f"dropped {drop.id}: {drop.reason}", kind=LineKind.CAUSE)
        if dropped:
            outcomes = [
                TriggerOutcome.dropped(drop.id, published or drop.reason)
                for drop in dropped[-MOST:]
            ]
            self._take_out(outcomes, {drop.id: drop.reason for drop in dropped})
            self._tell()

    def _take_out(self, outcomes: Sequence[TriggerOutcome], reasons: Mapping[str, str]) -> None:
        """Remove causes from the inbox durably, with their outcomes and reasons by cause id."""
        self._inbox.settle(reasons, outcomes, reasons=reasons)
        self.outcomes.extend(outcomes)
        for cause_id in reasons:
            self._steps.forget(cause_id)

    def _tell(self) -> None:
        for event in self._changed:
            event.set()

    async def _sleep(
        self, run: "asyncio.Task[RunCompletion] | None", stop: asyncio.Event, pulse: float
    ) -> None:
        """Sleep until the next event or check is due."""
        # If something waits that could not start, check often: the end of a hold or of a foreign
        # run sends no event.
        blocked = run is None and (self.waiting is not None or bool(self._steps))
        again = SOON if self._steps.await_entries else AGAIN
        await wait_first(
            self._wake,
            *([run] if run else []),
            *([] if stop.is_set() else [stop]),
            seconds=min(again, pulse) if blocked else pulse,
        )
        self._wake.clear()


def _shown(cause: RunCause) -> str:
    """Return a cause as the log shows it: `trigger from b (UUID)`, with its path if it has one."""
    way = f" along {' -> '.join(cause.path)}" if len(cause.path) > 1 else ""
    return f"{cause} ({cause.uuid}){way}"
