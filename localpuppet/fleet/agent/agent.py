"""The agent's decisions: what it hears becomes runs, at most one at a time, and none is lost.

    hear -> admit -> write down -> coalesce -> (hold?) -> run -> settle

Owns: the order of these steps on one node. Refuses to know: engines and sockets (what comes from
the bus is handed to `hear`), how a run is done (`Runner`), the terminal.

Invariants: a cause is in the inbox before it counts, and leaves it only when a run that started
after it is over or when its drop was logged; a failed write of the inbox is an error that ends the
agent, since it could keep no promise; no message, however malformed, raises.
"""

import asyncio
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from localpuppet.base.errors import LocalpuppetError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.machine.ports import Clock, LineKind, Log
from localpuppet.fleet.agent.admission import SignedAdmission
from localpuppet.fleet.agent.restored_steps import RestoredSteps
from localpuppet.fleet.agent.runner import Fate, Obstacles, Order, RunEnd, Runner
from localpuppet.fleet.triggers.admission import Admitted, Dropped
from localpuppet.fleet.triggers.cause import Cause, CauseKind
from localpuppet.fleet.triggers.coalescing import Batch, Coalescer, Drop
from localpuppet.fleet.triggers.inbox import Inbox
from localpuppet.fleet.triggers.outcome import DROPPED, MOST, TriggerOutcome, of_run
from localpuppet.fleet.triggers.steps import Steps
from localpuppet.node.runs.hold import Held

# How soon a run is tried again while somebody else's has the node, and how soon a hold that
# somebody ends is noticed, in seconds.
AGAIN = 1.0
# How soon while a step waits for what other nodes say of themselves.
SOON = 0.2
# Nothing of ours sleeps longer: the watchdog is fed; a clock that was set is noticed, and a hold
# that somebody has put on this node: the others are told.
LONGEST_SLEEP = 2.0
MANY = 10  # more causes that are dropped for one reason share a line
IDS_A_LINE = 20
REMEMBERED = 3600  # seconds for which a cause of our own making is known as taken


class Agent:
    """One node's agent.

    Args:
        admission: What the node accepts from the bus.
        inbox: The causes on disk.
        runner: Does runs.
        obstacles: What keeps runs from their beginning.
        clock: The node's clock.
        log: What it says.
    """

    def __init__(
        self,
        *,
        admission: SignedAdmission,
        inbox: Inbox,
        runner: Runner,
        obstacles: Obstacles,
        clock: Clock,
        log: Log,
    ) -> None:
        self.me = admission.me
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
            log.debug(f"still owed: a {_shown(cause)}")
        self._wake = asyncio.Event()
        self._again_at = 0.0
        self._blocked = False  # the node was busy when a run was last tried
        self._was_held: Held | None = None
        self._changed: list[asyncio.Event] = []
        self.last: RunEnd | None = None
        # Also what an earlier agent settled: a run may have restarted it, and somebody waits.
        self.settled: deque[TriggerOutcome] = deque(inbox.settled(), maxlen=MOST)
        self._restored = RestoredSteps(obstacles.begun)
        for cause in owed:
            if cause.kind is CauseKind.ROLLOUT:
                (self._restored if inbox.began(cause.id) else self._steps).add(cause)
        self._settle_restored()

    @property
    def running(self) -> Batch | None:
        """The causes of the run that is on."""
        return self._coalescer.running

    @property
    def is_running(self) -> bool:
        """Return whether a run is on."""
        return self.running is not None

    @property
    def waiting(self) -> Batch | None:
        """The causes that wait for the next run."""
        return self._coalescer.waiting

    def receive_triggers(self, tokens: Sequence[bytes]) -> None:
        """Take signed triggers from the bus; those that are admitted are on the disk afterwards.

        Raises:
            StateError: They are not.
        """
        admitted: dict[str, Admitted] = {}
        for token in tokens:
            verdict = self._admission.admit(token)
            if isinstance(verdict, Dropped):
                say = self._log.debug if verdict.quiet else self._log.warning
                trigger = verdict.trigger
                which = f" of {trigger.hostname} ({trigger.uuid})" if trigger else ""
                say(f"dropped a trigger{which}: {verdict.reason}", kind=LineKind.STRANGER)
            elif verdict.cause.id not in admitted:
                problem = self._coalescer.problem(verdict.cause)
                if problem:
                    self._log.warning(
                        f"dropped a {_shown(verdict.cause)}: {problem}", kind=LineKind.STRANGER
                    )
                else:
                    admitted[verdict.cause.id] = verdict
        self._accept([(verdict.cause, verdict.remember_until) for verdict in admitted.values()])

    def request_run(
        self,
        kind: CauseKind,
        *,
        sender: str = "",
        noop: bool = False,
        puppet_tags: Sequence[str] = (),
        good_for: float | None = None,
    ) -> str | None:
        """Take a cause of our own: a timer, a person on this node, a request.

        Args:
            kind: Which of them.
            sender: Who asks; this node where it is left out.
            noop: Change nothing.
            puppet_tags: Puppet tags that limit the run.
            good_for: Seconds that it waits for a hold to end; for ever when `None`.

        Returns:
            Why it cannot be taken, if so.
        """
        now = int(self._clock.now().timestamp())
        cause = Cause(
            kind=kind,
            sender=sender or self.me,
            uuid=str(uuid.uuid4()),
            timestamp=now,
            expires=None if good_for is None else now + int(good_for),
            noop=noop,
            puppet_tags=tuple(puppet_tags),
        )
        problem = self._coalescer.problem(cause)
        if problem is None:
            self._accept([(cause, now)])
        return problem

    def react(self, causes: Sequence[Cause]) -> None:
        """Take causes that this node has made of what changed elsewhere; see `Host`."""
        fresh = [cause for cause in causes if not self._inbox.seen(cause.id)]
        taken = []
        for cause in fresh:
            problem = self._coalescer.problem(cause)
            if problem is None:
                taken.append((cause, cause.timestamp + REMEMBERED))
            else:
                self._log.warning(f"dropped a {_shown(cause)}: {problem}", kind=LineKind.CAUSE)
        self._accept(taken)

    def take_step(self, cause: Cause) -> None:
        """Take a step of a rollout, which is in the inbox by now: it runs alone, and once."""
        self._steps.add(cause)
        self._log.info(f"accepted {_shown(cause)}", kind=LineKind.ACCEPTED)
        self._wake.set()

    def _settle_restored(self) -> None:
        """Settle the steps that an earlier agent began, and whose runs are over by now."""
        for cause, end in self._restored.take_ended():
            outcomes = of_run({cause.id: cause.timestamp}, run=end.run, outcome=end.outcome)
            self._take_out(outcomes, {cause.id: end.reason})
            line = f"{_shown(cause)} {end.outcome}: {end.reason or end.run}"
            self._log.warning(line, kind=LineKind.RUN)
            self._tell()

    def owes(self, causes: Iterable[str]) -> bool:
        """Return whether the cause with one of these ids waits for its run to start."""
        waiting = self.waiting
        return waiting is not None and any(cause in waiting for cause in causes)

    def _accept(self, causes: Sequence[tuple[Cause, int]]) -> None:
        if not causes:
            return
        self._inbox.accept(causes)
        for cause, _ in causes:
            self._coalescer.accept(cause)
            self._log.info(f"accepted a {_shown(cause)}", kind=LineKind.ACCEPTED)
        self._wake.set()

    def paths(self) -> tuple[tuple[NodeName, ...], ...]:
        """Return the paths of the causes of the run that is on; `((),)` when none is."""
        return self.running.paths if self.running else ((),)

    def subscribe(self) -> asyncio.Event:
        """Return an event that is set whenever something changed; whoever waits clears it."""
        event = asyncio.Event()
        event.set()
        self._changed.append(event)
        return event

    def recheck(self) -> None:
        """Look again, and tell others: somebody else ran Puppet here, or a hold changed."""
        self._wake.set()
        self._tell()

    async def work(
        self, stop: asyncio.Event, *, alive: Callable[[], None], pulse: float = LONGEST_SLEEP
    ) -> None:
        """Do runs until `stop` is set and the run that is on has ended.

        Args:
            stop: Ends it.
            alive: Called again and again: the work goes on.
            pulse: Seconds within which `alive` is called again, and holds are looked at.

        Raises:
            StateError: The inbox cannot be written: no promise could be kept.
        """
        run: asyncio.Task[RunEnd] | None = None
        stopping = asyncio.create_task(stop.wait())
        try:
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
                await self._sleep(run, stopping, pulse)
        finally:
            stopping.cancel()

    def _next(self, held: Held | None) -> Batch | None:
        """Return what is due, and drop what is too late."""
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

    def _step(self, held: Held | None) -> "asyncio.Task[RunEnd] | None":
        """Start what is due, and drop what is too late."""
        if self._clock.monotonic() < self._again_at:
            return None
        batch = self._next(held)
        if batch is None:
            return None
        order = Order(
            causes={**batch.to_dict(), "paths": [list(path) for path in batch.paths]},
            text=str(batch),
            noop=batch.noop,
            puppet_tags=batch.puppet_tags,
            through=batch.rollout,
        )
        say = self._log.debug if self._blocked else self._log.info
        say(f"running for {batch}")
        for start in range(0, len(batch.ids), IDS_A_LINE):
            self._log.debug(
                f"this run's causes: {' '.join(batch.ids[start : start + IDS_A_LINE])}",
                kind=LineKind.RUN,
            )
        self._tell()
        return asyncio.create_task(self._runner.run(order))

    def _look_at_holds(self) -> Held | None:
        """Return why the node does not run for now, if so; tell others when that changes."""
        try:
            held = self._held()
        except LocalpuppetError as error:
            held = Held(reason=str(error))  # better no run than one on a held node
        if held != self._was_held:
            self._was_held = held
            self._tell()
        return held

    def _settle(self, end: RunEnd) -> None:
        batch = self.running
        if end.fate is Fate.BUSY:
            say = self._log.debug if self._blocked else self._log.info
            say(f"not now, again soon: {end.reason}", kind=LineKind.RUN)
            self._put_back(batch)
            self._again_at = self._clock.monotonic() + AGAIN
        elif end.fate is Fate.IMPOSSIBLE:
            self._log.warning(f"no run for {batch}: {end.reason}", kind=LineKind.RUN)
            self._drop(self._coalescer.give_up(end.reason))
        else:
            sent = batch.timestamps if batch else {}
            outcomes = of_run(sent, run=end.run, outcome=end.outcome)
            self._take_out(outcomes, dict.fromkeys(self._coalescer.ended(), end.reason))
            # Said when it is on the disk: after this line a kill leads to no second run for them.
            reason = f": {end.reason}" if end.reason else ""
            self._log.info(
                f"run {end.run or '(no record)'} {end.outcome}{reason}", kind=LineKind.RUN
            )
        self._blocked = end.fate is Fate.BUSY
        self.last = self.last if self._blocked else end
        self._tell()

    def _put_back(self, batch: Batch | None) -> None:
        """Have the causes of a run that did not start wait again."""
        if batch is None or batch.rollout is None:
            self._coalescer.put_back()
            return
        for cause_id in self._coalescer.ended():  # a step waits with the others of its kind
            self._inbox.set_began(cause_id, began=False)

    def _drop(self, dropped: Sequence[Drop]) -> None:
        reasons = Counter(drop.reason for drop in dropped)
        for reason, count in reasons.items():
            if count > MANY:
                self._log.warning(f"dropped {count} causes: {reason}", kind=LineKind.CAUSE)
        for drop in dropped:
            say = self._log.debug if reasons[drop.reason] > MANY else self._log.warning
            say(f"dropped {drop.id}: {drop.reason}", kind=LineKind.CAUSE)
        if dropped:
            ids = [drop.id for drop in dropped]
            outcomes = [
                TriggerOutcome.of_cause(one, 0, run=None, outcome=DROPPED) for one in ids[-MOST:]
            ]
            self._take_out(outcomes, {one.id: one.reason for one in dropped})
            self._tell()

    def _take_out(self, outcomes: Sequence[TriggerOutcome], reasons: Mapping[str, str]) -> None:
        """Take causes out, durably, with what became of them and why, by their ids."""
        self._inbox.settle(reasons, outcomes, reasons=reasons)
        self.settled.extend(outcomes)
        for cause_id in reasons:
            self._steps.forget(cause_id)

    def _tell(self) -> None:
        for event in self._changed:
            event.set()

    async def _sleep(
        self,
        run: "asyncio.Task[RunEnd] | None",
        stopping: "asyncio.Task[bool]",
        pulse: float,
    ) -> None:
        """Wait until there may be something to do."""
        # While something waits that could not start, look often: nobody tells when a hold ends or
        # another's run does.
        blocked = run is None and (self.waiting is not None or bool(self._steps))
        again = SOON if self._steps.await_entries else AGAIN
        wake = asyncio.create_task(self._wake.wait())
        waits: set[asyncio.Task[Any]] = {wake, *([run] if run else [])}
        if not stopping.done():
            waits.add(stopping)
        await asyncio.wait(
            waits,
            timeout=min(again, pulse) if blocked else pulse,
            return_when=asyncio.FIRST_COMPLETED,
        )
        wake.cancel()
        self._wake.clear()


def _shown(cause: Cause) -> str:
    """Return a cause as the log names it: `trigger from b (UUID)`, with its way if it had one."""
    way = f" along {' -> '.join(cause.path)}" if len(cause.path) > 1 else ""
    return f"{cause} ({cause.uuid}){way}"
