"""What a rollout does next, against models that are too slow and too simple to be wrong."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localpuppet.base.errors import InvalidInputError
from localpuppet.rollout.deciding import NextAction, decide
from localpuppet.rollout.events import (
    ChecksEnded,
    NodeResult,
    NodeRun,
    NodeRunEnded,
    NodeRunsStarted,
    NodesSkipped,
    RolloutContinued,
    RolloutEnding,
    RolloutStopped,
)
from localpuppet.rollout.rollout_options import Amount, OnFailure, PauseAfter, RolloutOptions
from localpuppet.rollout.state import RolloutState
from tests.rollout.simulated import began, node

AMOUNTS = st.builds(Amount, number=st.integers(1, 100), percent=st.booleans())
GROUPS = st.lists(st.sets(st.integers(0, 11), min_size=1), min_size=1, max_size=4)


def turns(*numbers: int, step: int = 1) -> tuple[NodeRun, ...]:
    return tuple(NodeRun(step, node(one)) for one in numbers)


def end(
    state: RolloutState, *numbers: int, step: int = 1, fate: NodeResult = NodeResult.SUCCEEDED
) -> None:
    for turn in turns(*numbers, step=step):
        state.take(NodeRunEnded(node_run=turn, result=fate))


def check(state: RolloutState, *numbers: int, step: int = 1, problem: str = "") -> None:
    for turn in turns(*numbers, step=step):
        state.take(ChecksEnded(node_run=turn, problem=problem))


def start(state: RolloutState) -> tuple[NodeRun, ...]:
    found = decide(state).start
    state.take(NodeRunsStarted(node_runs=found))
    return found


def test_groups_follow_each_other() -> None:
    state = RolloutState(began([1, 2], [1, 3]))
    assert start(state) == turns(1, 2)
    end(state, 2)
    assert start(state) == ()
    end(state, 1)
    assert start(state) == turns(1, 3, step=2)
    end(state, 1, 3, step=2)
    assert decide(state).over


def test_a_batch_is_closed_and_a_window_is_not() -> None:
    state = RolloutState(began(range(5), batch=Amount.parse("50%", what="")))
    assert start(state) == turns(0, 1)
    end(state, 0)
    assert start(state) == ()
    end(state, 1)
    assert start(state) == turns(2, 3)
    state = RolloutState(began(range(5), window=2))
    assert start(state) == turns(0, 1)
    end(state, 1)
    assert start(state) == turns(2)


CHECK = ("http://%{node}/",)


def test_a_batch_is_checked_when_all_its_runs_have_ended_then_the_next_starts() -> None:
    state = RolloutState(began(range(4), batch=Amount.parse("2", what=""), checks=CHECK))
    assert start(state) == turns(0, 1)
    end(state, 0)
    assert decide(state) == NextAction(), "the other one still runs"
    end(state, 1)
    assert decide(state) == NextAction(check=turns(0, 1))
    check(state, 1)
    assert decide(state) == NextAction(check=turns(0))
    check(state, 0)
    assert decide(state) == NextAction(start=turns(2, 3))


def test_a_window_moves_on_when_a_node_has_ended_and_its_checks_passed() -> None:
    state = RolloutState(began(range(4), window=2, checks=CHECK))
    assert start(state) == turns(0, 1)
    end(state, 1)
    assert decide(state) == NextAction(check=turns(1))
    check(state, 1)
    assert start(state) == turns(2)


def test_nodes_of_different_places_do_not_run_together() -> None:
    """Odd ones are in a, even ones in b: canaries of both, then a by its window, then b."""
    first = began(range(1, 7), canary=2, window=2)
    first = replace(first, places={node(n): "ba"[n % 2] for n in range(1, 7)})
    state = RolloutState(first)
    order = []
    while not decide(state).over:
        order.append(tuple(turn.node for turn in start(state)))
        assert len({first.places[turn.node] for turn in state.running}) == 1
        state.take(NodeRunEnded(node_run=state.running[0], result=NodeResult.SUCCEEDED))
    assert [[*map(node, some)] for some in ([1], [2], [3, 5], [], [4, 6], [])] == [
        *map(list, order)
    ]
    batches = RolloutState(replace(first, options=RolloutOptions(batch=Amount.parse("2", what=""))))
    assert start(batches) == turns(1, 3)


def test_a_failed_check_is_a_failure_of_its_node_and_finished_runs_are_checked() -> None:
    state = RolloutState(began([1, 2, 3], [4], window=3, checks=CHECK))
    start(state)
    end(state, 1, 2)
    check(state, 1, problem="check http://n01/: answered 503")
    assert decide(state) == NextAction(stop="1 node failed; none may fail")
    state.take(RolloutStopped(ending=RolloutEnding.FAILED, reason=""))
    assert decide(state) == NextAction(check=turns(2))
    check(state, 2)
    assert decide(state) == NextAction(), "one still runs"
    end(state, 3, fate=NodeResult.FAILED)
    assert decide(state) == NextAction(over=True), "a failed run is not checked"
    assert state.failed[node(1)].reason == "check http://n01/: answered 503"
    assert list(state.results().values()) == [
        NodeResult.FAILED,
        NodeResult.SUCCEEDED,
        NodeResult.FAILED,
        None,
    ]


def test_the_checks_of_a_node_run_come_from_the_site_and_the_options() -> None:
    first = began([1], [2], checks=CHECK)
    first = replace(first, checks={NodeRun(2, node(2)): ("http://site/",)})
    assert RolloutState(first).checks(NodeRun(1, node(1))) == CHECK
    assert RolloutState(first).checks(NodeRun(2, node(2))) == ("http://site/", *CHECK)
    noop = replace(first, options=RolloutOptions(noop=True))
    assert RolloutState(noop).checks(NodeRun(2, node(2))) == ()


def test_canaries_run_first_and_a_failed_canary_ends_the_rollout() -> None:
    first = began(range(5), canary=2, window=3, max_failures=Amount.parse("5", what=""))
    state = RolloutState(first)
    assert start(state) == turns(0, 1)
    end(state, 0)
    assert start(state) == ()
    end(state, 1)
    assert start(state) == turns(2, 3, 4)
    end(state, 2, fate=NodeResult.FAILED)
    assert not decide(state).stop, "no canary"
    state = RolloutState(first)
    start(state)
    end(state, 0, fate=NodeResult.UNRESPONSIVE)
    assert decide(state).stop == "n00.example.com, a canary, is unresponsive"


def test_a_failed_node_does_not_run_again_and_a_skipped_node_never_runs() -> None:
    state = RolloutState(began([1, 2, 4], [1, 2, 3, 4], max_failures=Amount.parse("25%", what="")))
    state.take(NodesSkipped(reasons={node(4): "on hold"}))
    assert start(state) == turns(1, 2)
    end(state, 1, fate=NodeResult.FAILED)
    end(state, 2)
    assert start(state) == turns(2, 3, step=2)
    end(state, 2, 3, step=2)
    assert decide(state).over
    assert [str(fate) for fate in state.results().values()] == [
        "failed",
        "succeeded",
        "succeeded",
        "skipped",
    ]


def test_a_stopped_rollout_starts_nothing_and_ends_with_its_last_run() -> None:
    state = RolloutState(began([1], [2]))
    start(state)
    state.take(RolloutStopped(ending=RolloutEnding.STOPPED, reason="alice"))
    assert not decide(state).over
    end(state, 1)
    assert decide(state).over
    assert decide(state).start == ()


@pytest.mark.parametrize("text", ["", "-1", "0", "101%", "1.5", "x", "5 %", "9999999"])
def test_an_invalid_amount_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError):
        Amount.parse(text, what="--batch")


@given(amount=AMOUNTS, total=st.integers(0, 1000))
def test_a_percentage_is_rounded_down(amount: Amount, total: int) -> None:
    found = Amount.parse(str(amount), what="").of(total)
    assert found == (int(total * (amount.number / 100) + 1e-9) if amount.percent else amount.number)


class Counter:
    """A naive observer of a rollout: counts what failed, and remembers what began."""

    def __init__(self, state: RolloutState, most: int) -> None:
        self.state = state
        self.most = most
        self.options = state.began.options
        self.failed: set[str] = set()
        self.accepted: set[str] = set()
        self.canary_failed = False
        self.begun: list[NodeRun] = []

    def judge(self, now: NextAction) -> None:
        """Check a decision against the rules, and take it."""
        state = self.state
        if state.stopped is None:
            assert not self.too_much
        if self.options.window is None and self.begun and now.start:
            assert not state.unchecked, "a batch that is not checked delays the next one"
        for turn in now.start:
            assert turn not in self.begun, "a node run starts once"
            assert turn.node not in self.failed
            assert all(one.step >= turn.step for one in state.running), "groups are apart"
        if now.start:
            self.begun += now.start
            state.take(NodeRunsStarted(node_runs=now.start))
        places = {state.began.places.get(turn.node) for turn in (*state.running, *now.check)}
        assert len(places) <= 1 or state.stopped or not state.began.places
        if self.options.window is not None:
            members = state.turns(self.begun[-1].step)[self.options.canary :]
            on = {*state.running, *state.unchecked}
            assert sum(turn in members for turn in on) <= self.options.window
        assert state.running or now.check, (
            "no run is active, none starts, and the rollout has not ended"
        )

    @property
    def too_much(self) -> bool:
        """Whether there are too many failures without a continue, or one of a canary."""
        beyond = len(self.failed) > self.most and self.failed != self.accepted
        return self.canary_failed or beyond

    def accept(self) -> None:
        """Continue a paused rollout."""
        self.state.take(RolloutContinued(caller="bob"))
        self.accepted, self.canary_failed = set(self.failed), False

    def fail(self, turn: NodeRun) -> None:
        self.failed.add(turn.node)
        self.canary_failed |= turn in self.state.turns(turn.step)[: self.options.canary]


FATES = st.sampled_from(
    [NodeResult.SUCCEEDED, NodeResult.SUCCEEDED, NodeResult.FAILED, NodeResult.UNRESPONSIVE]
)
PROBLEMS = st.sampled_from(["", "", "answered 503"])


@given(data=st.data(), groups=GROUPS, allowed=st.builds(str, st.integers(0, 8)) | st.just("30%"))
def test_every_rollout(data: st.DataObject, groups: list[set[int]], allowed: str) -> None:
    """In any order of ends, the rules hold at each step, and the rollout ends."""
    window = data.draw(st.none() | st.integers(1, 4))
    first = began(
        *map(sorted, groups),
        window=window,
        batch=data.draw(AMOUNTS) if window is None else None,
        canary=data.draw(st.integers(0, 3)),
        max_failures=Amount.parse(allowed, what="", minimum=0),
        checks=data.draw(st.just(()) | st.just(CHECK)),
        on_failure=data.draw(st.sampled_from([OnFailure.STOP, OnFailure.PAUSE])),
        pause=data.draw(st.just(()) | st.just(tuple(PauseAfter))),
    )
    places = data.draw(st.just({}) | st.just({node(n): str(n % 3) for n in range(12)}))
    first = replace(first, places=places)
    state = RolloutState(first)
    total = len(set().union(*groups))
    counter = Counter(state, total * 30 // 100 if allowed == "30%" else int(allowed))
    while not (now := decide(state)).over:
        if now.pause is not None:
            assert counter.too_much != bool(now.pause.point)
            state.take(now.pause)
            assert not decide(state).start
            counter.accept()
            continue
        if now.stop:
            assert first.options.on_failure is OnFailure.STOP
            assert counter.too_much
            state.take(RolloutStopped(ending=RolloutEnding.FAILED, reason=now.stop))
            continue
        counter.judge(now)
        turn = data.draw(st.sampled_from([*state.running, *now.check]))
        if turn in now.check:
            checked = ChecksEnded(node_run=turn, problem=data.draw(PROBLEMS))
            if checked.problem:
                counter.fail(turn)
            state.take(checked)
            continue
        ended = NodeRunEnded(node_run=turn, result=data.draw(FATES))
        if ended.result is not NodeResult.SUCCEEDED:
            counter.fail(turn)
        state.take(ended)
    if state.stopped is None:
        planned = {
            NodeRun(step, node(one)) for step, group in enumerate(groups, 1) for one in group
        }
        assert {turn for turn in planned if turn.node not in counter.failed} <= set(counter.begun)
