"""Simulated fleets with circles of triggers, a bad bus and killed agents keep the guarantees.

The tests also find planted bugs, which proves that the simulation can fail.
"""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.triggers.cause import CauseKind, RunCause
from localpuppet.fleet.triggers.coalescing import Batch, Coalescer, CoalescerStep, Path
from localpuppet.fleet.triggers.trigger_admission import next_path
from tests.rigs.crash_points import FULL
from tests.rigs.long import with_sample
from tests.rigs.quick import examples
from tests.simulation.fleet import Fleet, Simulated
from tests.simulation.history import check

MAX_NODES = 6
# A path names no node twice, so with six nodes a chain ends after six messages. An active run and a
# waiting one come before that, and one more round may be needed to see that the fleet is quiet.
ROUNDS = MAX_NODES + 3

numbers = st.integers(0, MAX_NODES - 1)
seldom = st.sampled_from([False, False, False, False, True])


def lives(node: Simulated) -> bool:
    return node.agent is not None


def is_dead(node: Simulated) -> bool:
    return node.agent is None


def runs(node: Simulated) -> bool:
    return node.run is not None and not node.run.over


def has_triggers_to_send(node: Simulated) -> bool:
    return runs(node) and bool(node.run and node.run.unsent)


def is_over(node: Simulated) -> bool:
    return lives(node) and node.run is not None and node.run.over


def has_work(node: Simulated) -> bool:
    return node.agent is not None and node.agent.waiting is not None


def is_busy(node: Simulated) -> bool:
    return lives(node) and (runs(node) or is_starting(node))


def is_starting(node: Simulated) -> bool:
    return node.starting is not None


def has_something_to_lose(node: Simulated) -> bool:
    return lives(node) and bool(node.inbox)


def some(which: Callable[[Simulated], bool]) -> Callable[[Any], bool]:
    """Return the precondition that at least one such node exists."""
    return lambda machine: any(which(node) for node in machine.fleet.nodes)


class FleetMachine(RuleBasedStateMachine):
    """All possible events in any order."""

    fleet: Fleet
    looks_inside = True

    def make(self, edges: list[list[int]]) -> Fleet:
        return Fleet(edges)

    @initialize(data=st.data(), size=st.integers(1, MAX_NODES))
    def begin(self, data: st.DataObject, size: int) -> None:
        receivers = st.lists(st.integers(0, size - 1), unique=True, min_size=1, max_size=size)
        self.fleet = self.make(data.draw(st.lists(receivers, min_size=size, max_size=size)))

    def node(self, number: int, which: Callable[[Simulated], bool]) -> Simulated:
        found = [node for node in self.fleet.nodes if which(node)]
        return found[number % len(found)]

    @precondition(some(lives))
    @rule(
        number=numbers, kind=st.sampled_from([CauseKind.TIMER, CauseKind.MANUAL, CauseKind.REQUEST])
    )
    def origin(self, number: int, kind: CauseKind) -> None:
        self.fleet.origin(self.node(number, lives), kind)

    @precondition(lambda self: self.fleet.bus)
    @rule(index=st.integers(0, 50), die=seldom)
    def deliver(self, index: int, die: bool) -> None:
        self.fleet.deliver(self.fleet.bus.pop(index % len(self.fleet.bus)), die=die)

    @precondition(lambda self: self.fleet.bus)
    @rule(index=st.integers(0, 50), between=st.booleans())
    def deliver_and_keep(self, index: int, between: bool) -> None:
        message = self.fleet.bus[index % len(self.fleet.bus)]
        self.fleet.deliver(message)
        if between:
            self.fleet.work(self.fleet.named(message.to))

    @precondition(lambda self: len(self.fleet.bus) > 1)
    @rule()
    def deliver_all_newest_first(self) -> None:
        arriving, self.fleet.bus = self.fleet.bus[::-1], []
        for message in arriving:
            self.fleet.deliver(message)

    @precondition(lambda self: len(self.fleet.bus) > 1)
    @rule(index=st.integers(0, 50))
    def lose(self, index: int) -> None:
        del self.fleet.bus[index % len(self.fleet.bus)]

    @precondition(some(has_work))
    @rule(number=numbers, die=seldom)
    def step(self, number: int, die: bool) -> None:
        self.fleet.step(self.node(number, has_work), die=die)

    @precondition(some(is_starting))
    @rule(number=numbers)
    def launch(self, number: int) -> None:
        self.fleet.launch(self.node(number, is_starting))

    @precondition(some(is_starting))
    @rule(number=numbers, die=seldom)
    def fail_to_launch(self, number: int, die: bool) -> None:
        self.fleet.launch(self.node(number, is_starting), die=die, refused=True)

    @precondition(some(is_starting))
    @rule(number=numbers, again=st.booleans())
    def find_the_node_busy(self, number: int, again: bool) -> None:
        node = self.node(number, is_starting)
        self.fleet.launch(node, busy=True)
        if again:
            self.fleet.step(node)
            self.fleet.launch(node)

    @precondition(some(has_triggers_to_send))
    @rule(number=numbers)
    def notify(self, number: int) -> None:
        self.fleet.notify(self.node(number, has_triggers_to_send))

    @precondition(some(runs))
    @rule(number=numbers)
    def end(self, number: int) -> None:
        self.fleet.end(self.node(number, runs))

    @precondition(some(is_over))
    @rule(number=numbers)
    def acknowledge(self, number: int) -> None:
        self.fleet.acknowledge(self.node(number, is_over))

    @precondition(some(has_work))
    @rule(number=numbers)
    def work(self, number: int) -> None:
        self.fleet.work(self.node(number, has_work))

    @rule()
    def let_all_work(self) -> None:
        self.fleet.round()

    @precondition(some(has_something_to_lose))
    @rule(number=numbers, run_too=st.booleans(), for_long=seldom)
    def kill(self, number: int, run_too: bool, for_long: bool) -> None:
        node = self.node(number, has_something_to_lose)
        self.fleet.kill(node, run_too=run_too)
        if not for_long:
            self.fleet.restart(node)

    @precondition(some(lambda node: lives(node) and runs(node)))
    @rule(number=numbers)
    def outlive_the_agent(self, number: int) -> None:
        node = self.node(number, lambda node: lives(node) and runs(node))
        self.fleet.kill(node, run_too=False)
        self.fleet.restart(node)
        self.fleet.step(node)

    @precondition(some(is_busy))
    @rule(number=numbers)
    def want_another_run(self, number: int) -> None:
        node = self.node(number, is_busy)
        self.fleet.origin(node, CauseKind.TIMER)
        self.fleet.step(node)

    @precondition(some(is_dead))
    @rule(number=numbers)
    def restart(self, number: int) -> None:
        self.fleet.restart(self.node(number, is_dead))

    @precondition(some(lives))
    @rule(number=numbers)
    def hold(self, number: int) -> None:
        self.node(number, lives).hold = "disks are being changed"

    @precondition(some(lambda node: node.hold is not None))
    @rule(number=numbers)
    def end_hold(self, number: int) -> None:
        self.node(number, lambda node: node.hold is not None).hold = None

    @precondition(some(has_work))
    @rule(number=numbers, seconds=st.sampled_from([20, 200, 4000]), die=seldom)
    def sit_out_a_hold(self, number: int, seconds: int, die: bool) -> None:
        node = self.node(number, has_work)
        node.hold = "disks are being changed"
        self.fleet.now += seconds
        self.fleet.step(node, die=die)

    @rule(number=numbers, skew=st.sampled_from([0, 20, -20, 3600, -3600]))
    def set_clock(self, number: int, skew: int) -> None:
        self.node(number, lambda _: True).skew = skew

    @rule(seconds=st.sampled_from([0.5, 20, 179, 200, 4000]))
    def wait(self, seconds: float) -> None:
        self.fleet.now += seconds

    @invariant()
    def memory_and_disk_agree(self) -> None:
        for node in self.fleet.nodes if self.looks_inside else ():
            if node.agent is not None:
                batches = (node.agent.running, node.agent.waiting)
                known = [cause for batch in batches if batch for cause in batch.ids]
                assert sorted(known) == sorted(node.inbox), "each cause is in one batch"
                assert all(batch is None or len(batch) for batch in batches)

    def teardown(self) -> None:
        if not hasattr(self, "fleet"):
            return
        assert check(self.fleet.history, settled=False) == []
        assert self.fleet.settle(ROUNDS), "chains end"
        assert check(self.fleet.history) == []


FleetMachine.TestCase.settings = examples(1000 if FULL else 100, stateful_step_count=60)
TestFleet = FleetMachine.TestCase


FAST = settings(
    max_examples=3000,
    stateful_step_count=60,
    deadline=None,
    derandomize=True,  # the same examples in each session
    database=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
    report_multiple_bugs=False,
)


class ForgetsWhatArrivesDuringARun(Coalescer):
    """Treats a new cause as one of the active run."""

    def accept(self, cause: RunCause) -> None:
        if self.running is not None:
            self.running.add(cause)
        else:
            super().accept(cause)


class RunsTwoAtOnce(Coalescer):
    """Does not check for an active run."""

    def step(self, now: float, *, held: str | None) -> CoalescerStep:
        if held is None and self.waiting is not None:
            self.running = None
        return super().step(now, held=held)


class OneRunForEachCause(Coalescer):
    """A queue, as in the predecessor."""

    def step(self, now: float, *, held: str | None) -> CoalescerStep:
        waiting = self.waiting
        step = super().step(now, held=held)
        if step.start is not None and waiting is not None and len(waiting) > 1:
            first, *others = waiting._spelt.values()
            self.running = Batch()
            self.running.add(first)
            for cause in others:
                self.accept(cause)
            return CoalescerStep(start=self.running)
        return step


class ExpiresInSilence(Coalescer):
    """Drops causes during a hold without a log line."""

    def step(self, now: float, *, held: str | None) -> CoalescerStep:
        step = super().step(now, held=held)
        return step if held is None else CoalescerStep()


class NeverSettles(Coalescer):
    """Runs again for causes that had their run."""

    def ended(self) -> tuple[str, ...]:
        self.put_back()
        return ()


class RestoresHalf(Coalescer):
    """Restores only the newest cause after a restart."""

    @classmethod
    def restore(cls, causes):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN206
        return super().restore(list(causes)[-1:])


def mixes(paths: tuple[Path, ...], *, me: NodeName, receiver: NodeName) -> Path | str:
    """Starts a new chain if the run has several causes."""
    return next_path(paths, me=me, receiver=receiver) if len(paths) == 1 else (me,)


def ignores_the_receiver(
    paths: tuple[Path, ...], *, me: NodeName, receiver: NodeName
) -> Path | str:
    """Relies on the receiver to notice the loop."""
    return (*paths[0], me)


@pytest.mark.slow
@pytest.mark.parametrize(
    "bug",
    with_sample(
        [
            ForgetsWhatArrivesDuringARun,
            RunsTwoAtOnce,
            OneRunForEachCause,
            ExpiresInSilence,
            NeverSettles,
            RestoresHalf,
        ],
        ForgetsWhatArrivesDuringARun,
        RestoresHalf,
    ),
)
def test_the_simulation_finds_a_planted_bug_of_the_coalescer(bug: type[Coalescer]) -> None:
    finds(coalescer=bug)


@pytest.mark.slow
@pytest.mark.parametrize("bug", [mixes, ignores_the_receiver])
def test_the_simulation_finds_a_planted_bug_of_the_chain(bug: object) -> None:
    finds(path=bug)


def finds(**bug: Any) -> None:
    class Machine(FleetMachine):
        looks_inside = False  # only the history may show the bug

        def make(self, edges: list[list[int]]) -> Fleet:
            return Fleet(edges, **bug)

    with pytest.raises(AssertionError):
        run_state_machine_as_test(Machine, settings=FAST)
