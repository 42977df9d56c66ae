"""What a rollout does next, what its runs wait for, until when they start, how long it takes."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localpuppet.base.errors import InvalidInputError
from localpuppet.fleet.inventory.outbox import MAX_AWAITED
from localpuppet.rollout.deciding import NextAction, decide, late, seconds_left
from localpuppet.rollout.events import (
    ChecksEnded,
    Event,
    ExportDependency,
    LastRunsReported,
    NodeResult,
    NodeRun,
    NodesSkipped,
    RolloutBegan,
    RolloutContinued,
    RolloutEnding,
    RolloutResumed,
    from_dict,
    to_dict,
)
from localpuppet.rollout.executing import awaited_by
from localpuppet.rollout.rollout_options import (
    Amount,
    OnFailure,
    PauseAfter,
    RolloutOptions,
    parse_until,
)
from localpuppet.rollout.state import RolloutState
from tests.doubles.simulated_loop import run_simulated
from tests.rollout.make import (
    BEGINNING,
    Notes,
    SimulatedNodes,
    began,
    carry_out,
    entry_of,
    execution,
    node,
    rollout_stopped,
    run_ended,
    runs_started,
    words,
)

pytestmark = pytest.mark.simulated
CHECK = ("http://%{node}/",)
AMOUNTS = st.builds(Amount, number=st.integers(1, 100), percent=st.booleans())
GROUPS = st.lists(st.sets(st.integers(0, 11), min_size=1), min_size=1, max_size=4)


def turns(*numbers: int, step: int = 1) -> tuple[NodeRun, ...]:
    return tuple(NodeRun(step, node(one)) for one in numbers)


def end(
    state: RolloutState, *numbers: int, step: int = 1, fate: NodeResult = NodeResult.SUCCEEDED
) -> None:
    for turn in turns(*numbers, step=step):
        state.take(run_ended(turn, fate))


def check(state: RolloutState, *numbers: int, step: int = 1, problem: str = "") -> None:
    for turn in turns(*numbers, step=step):
        state.take(ChecksEnded(node_run=turn, problem=problem))


def start(state: RolloutState) -> tuple[NodeRun, ...]:
    found = decide(state).start
    state.take(runs_started(*found))
    return found


Act = Callable[[RolloutState], object]


def starts(*numbers: int, step: int = 1) -> Act:
    def act(state: RolloutState) -> None:
        assert decide(state) == NextAction(start=turns(*numbers, step=step))
        start(state)

    return act


def checks(*numbers: int) -> Act:
    def act(state: RolloutState) -> None:
        assert decide(state) == NextAction(check=turns(*numbers))

    return act


def waits(state: RolloutState) -> None:
    assert decide(state) == NextAction()


def over(state: RolloutState) -> None:
    assert decide(state) == NextAction(over=True)


def ends(*numbers: int, **more: Any) -> Act:
    return lambda state: end(state, *numbers, **more)


def passes(number: int) -> Act:
    return lambda state: check(state, number)


def stops_for(reason: str) -> Act:
    def act(state: RolloutState) -> None:
        assert decide(state) == NextAction(stop=reason)

    return act


def happens(event: Event) -> Act:
    return lambda state: state.take(event)


FAILED, ALL = NodeResult.FAILED, Amount.parse("5", what="")
CANARIES = began(range(5), canary=2, window=3, max_failures=ALL)


@pytest.mark.parametrize(
    ("first", "acts"),
    [
        pytest.param(
            began([1, 2], [1, 3]),
            [
                *(starts(1, 2), ends(2), waits, ends(1)),
                *(starts(1, 3, step=2), ends(1, 3, step=2), over),
            ],
            id="groups follow each other",
        ),
        pytest.param(
            began(range(5), batch=Amount.parse("50%", what="")),
            [starts(0, 1), ends(0), waits, ends(1), starts(2, 3)],
            id="a batch is closed",
        ),
        pytest.param(
            began(range(5), window=2), [starts(0, 1), ends(1), starts(2)], id="a window is not"
        ),
        pytest.param(
            began(range(4), batch=Amount.parse("2", what=""), checks=CHECK),
            [
                *(starts(0, 1), ends(0), waits, ends(1), checks(0, 1)),
                *(passes(1), checks(0), passes(0), starts(2, 3)),
            ],
            id="a batch is checked when all its runs have ended",
        ),
        pytest.param(
            began(range(4), window=2, checks=CHECK),
            [starts(0, 1), ends(1), checks(1), passes(1), starts(2)],
            id="a window moves on when checks passed",
        ),
        pytest.param(
            CANARIES,
            [starts(0, 1), ends(0), waits, ends(1), starts(2, 3, 4), ends(2, fate=FAILED), waits],
            id="canaries run first",
        ),
        pytest.param(
            CANARIES,
            [
                *(starts(0, 1), ends(0, fate=NodeResult.UNRESPONSIVE)),
                stops_for("n00.example.com, a canary, is unresponsive"),
            ],
            id="a failed canary ends the rollout",
        ),
        pytest.param(
            began([1, 2, 4], [1, 2, 3, 4], max_failures=Amount.parse("25%", what="")),
            [
                happens(NodesSkipped(reasons={node(4): "on hold"})),
                *(starts(1, 2), ends(1, fate=FAILED), ends(2)),
                *(starts(2, 3, step=2), ends(2, 3, step=2), over),
            ],
            id="a failed node does not run again, a skipped one never",
        ),
        pytest.param(
            began([1], [2]),
            [
                *(starts(1), happens(rollout_stopped(RolloutEnding.STOPPED, "alice"))),
                *(waits, ends(1), over),
            ],
            id="a stopped rollout starts nothing and ends with its last run",
        ),
    ],
)
def test_what_comes_next(first: RolloutBegan, acts: list[Act]) -> None:
    state = RolloutState(first)
    for act in acts:
        act(state)


def test_nodes_of_different_places_do_not_run_together() -> None:
    """Odd ones are in a, even ones in b: canaries of both, then a by its window, then b."""
    first = began(range(1, 7), canary=2, window=2)
    first = replace(first, places={node(n): "ba"[n % 2] for n in range(1, 7)})
    state = RolloutState(first)
    order = []
    while not decide(state).over:
        order.append(tuple(turn.node for turn in start(state)))
        assert len({first.places[turn.node] for turn in state.running}) == 1
        state.take(run_ended(state.running[0]))
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
    state.take(rollout_stopped(RolloutEnding.FAILED))
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
            state.take(runs_started(*now.start))
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
            state.take(rollout_stopped(RolloutEnding.FAILED, now.stop))
            continue
        counter.judge(now)
        turn = data.draw(st.sampled_from([*state.running, *now.check]))
        if turn in now.check:
            checked = ChecksEnded(node_run=turn, problem=data.draw(PROBLEMS))
            if checked.problem:
                counter.fail(turn)
            state.take(checked)
            continue
        ended = run_ended(turn, data.draw(FATES))
        if ended.result is not NodeResult.SUCCEEDED:
            counter.fail(turn)
        state.take(ended)
    if state.stopped is None:
        planned = {
            NodeRun(step, node(one)) for step, group in enumerate(groups, 1) for one in group
        }
        assert {turn for turn in planned if turn.node not in counter.failed} <= set(counter.begun)


# 1 and 2 produce for 3, which produces for 1, that runs again for it; 4 needs nothing.
FIRST = replace(
    began([1, 2], [3], [1, 4]),
    needs=(
        ExportDependency(producers=(node(1), node(2)), consumers=(node(2), node(3))),
        ExportDependency(producers=(node(3),), consumers=(node(1),)),
    ),
)


def test_a_node_run_waits_only_for_the_producers_that_ran() -> None:
    nodes, notes = SimulatedNodes(producers={node(1), node(2), node(3)}), Notes()
    run_simulated(carry_out(FIRST, nodes, notes))
    assert {turn: set(after) for turn, after in nodes.after.items()} == {
        NodeRun(1, node(1)): set(),
        NodeRun(1, node(2)): set(),
        NodeRun(2, node(3)): {entry_of(NodeRun(1, node(1))), entry_of(NodeRun(1, node(2)))},
        NodeRun(3, node(1)): {entry_of(NodeRun(2, node(3)))},
        NodeRun(3, node(4)): set(),
    }
    assert [from_dict(to_dict(one)) for one in notes.events] == notes.events
    again = RolloutState.of(notes.events)
    assert awaited_by(again, NodeRun(3, node(1))) == (entry_of(NodeRun(2, node(3))),)
    assert awaited_by(again, NodeRun(again.step_back, node(1))) == (), (
        "a node that goes back waits for no other node"
    )


def test_of_many_producers_the_last_ones_are_awaited() -> None:
    makers = tuple(node(number) for number in range(MAX_AWAITED + 5))
    needs = (ExportDependency(producers=makers, consumers=(node(3),)),)
    state = RolloutState(replace(FIRST, groups=(makers, (node(3), node(500))), needs=needs))
    for maker in reversed(makers):
        turn = NodeRun(1, maker)
        end = run_ended(turn, outcome="changed", entry=entry_of(turn))
        state.take(end)
    found = awaited_by(state, NodeRun(2, node(500)))
    assert found == ()
    found = awaited_by(state, NodeRun(2, node(3)))
    assert len(found) == MAX_AWAITED
    assert found[-1].node == node(0)


NOW = datetime(2026, 11, 22, 5, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-11-22T06:00+00:00", "2026-11-22T06:00"),
        ("2026-11-22T07:00:00+01:00", "2026-11-22T06:00"),
        ("2026-11-22T06:00Z", "2026-11-22T06:00"),
        ("2026-11-22 07:00 Europe/Berlin", "2026-11-22T06:00"),
        ("07:00 Europe/Berlin", "2026-11-22T06:00"),
        ("6:30 Europe/Berlin", "2026-11-23T05:30"),
        ("05:31 UTC", "2026-11-22T05:31"),
        ("23:00 America/New_York", "2026-11-23T04:00"),
        # Summer time, and the hour that clocks show twice: the first of them.
        ("2027-03-28 03:00 Europe/Berlin", "2027-03-28T01:00"),
        ("2027-10-31 02:30 Europe/Berlin", "2027-10-31T00:30"),
        ("2027-10-31 03:00 Europe/Berlin", "2027-10-31T02:00"),
    ],
)
def test_a_moment(text: str, moment: str) -> None:
    found = parse_until(text, now=NOW, where="--until")
    assert found == datetime.fromisoformat(moment).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2026-11-22T06:00", "has no time zone"),
        ("06:00", "is not a time|has no zone"),
        ("tomorrow", "is not a time"),
        ("25:00 UTC", "is not a time"),
        ("06:00 Europe/Atlantis", "the zone 'Europe/Atlantis' is unknown"),
        ("06:00 ../../etc/passwd", "is not a time"),
        ("06:00 /etc/passwd", "is unknown"),
        ("2026-11-22T05:30Z", "is in the past"),
        ("2027-03-28 02:30 Europe/Berlin", "2027-03-28 02:30 does not exist in"),
    ],
)
def test_an_invalid_time_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=f"--until: .*({message})"):
        parse_until(text, now=NOW, where="--until")


def state(until: datetime, *seconds: float) -> RolloutState:
    found = RolloutState(began(range(len(seconds) + 1), until=until))
    lasted = {node(number): (took, 1.0) for number, took in enumerate(seconds)}
    found.take(LastRunsReported(durations=lasted))
    return found


def test_the_longest_known_run_decides_whether_nodes_still_start() -> None:
    turns = [NodeRun(1, node(number)) for number in range(3)]
    found = state(NOW + timedelta(minutes=10), 300, 600)
    assert late(found, turns, NOW) == ""
    assert late(found, turns, NOW + timedelta(seconds=1)) == (
        "the last run of n01.example.com took 10m, which is longer than to 2026-11-22 05:40 UTC"
    )
    assert late(found, turns[:1], NOW + timedelta(seconds=1)) == ""
    assert late(found, turns[2:], NOW + timedelta(minutes=9)) == "", "nothing is known of it"
    assert late(found, turns[2:], NOW + timedelta(minutes=10)) == "it is 2026-11-22 05:40 UTC"
    assert late(found, [], NOW + timedelta(days=1)) == ""
    assert late(RolloutState(began([1])), turns, NOW) == ""


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        # 01:00 in Berlin; three hours later clocks there show 03:00.
        ("2026-10-25 03:00 Europe/Berlin", 3),
        ("2026-10-25 02:58 Europe/Berlin", 1),
        ("2026-10-25 01:30 Europe/Berlin", 0),
    ],
)
async def test_until_is_right_in_the_night_when_clocks_are_set_back(text: str, runs: int) -> None:
    """Runs of one hour, one after the other; the rest is not reached, and resume continues."""

    hour = 3600.0
    until = parse_until(text, now=BEGINNING, where="")
    nodes = SimulatedNodes({node(number): hour for number in range(4)})
    nodes.lasted = {node(number): (hour - 60, 1.0) for number in range(4)}
    notes = Notes()
    first = began(range(4), window=1, until=until, timeout=2 * hour)
    found = await carry_out(first, nodes, notes)
    assert found.over is not None
    assert found.over.ending is RolloutEnding.STOPPED
    assert words(found) == ["succeeded"] * runs + ["not reached"] * (4 - runs)
    assert nodes.held == set()
    again = execution(RolloutState.of(notes.events), nodes, notes)
    assert (await again.run(RolloutResumed())).ending is RolloutEnding.DONE
    assert words(again.state) == ["succeeded"] * 4


LASTED = LastRunsReported(durations={node(n): (1000.0, 10.0 * n, 0.0) for n in range(1, 6)})


def rollout(*groups: list[int], places: Any = (), **options: object) -> RolloutState:
    state = RolloutState(replace(began(*groups, **options), places=dict(places)))
    state.take(LASTED)
    return state


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({}, 40 + 50),
        ({"batch": Amount.parse("2", what="")}, 20 + 40 + 50),
        ({"batch": Amount.parse("2", what=""), "canary": 1}, 10 + 30 + 40 + 50),
        ({"window": 2}, 50 + 50),
        ({"window": 4}, 40 + 50),
        ({"window": 1, "canary": 2}, 20 + 70 + 50),
        pytest.param(
            {"places": {node(n): str(n % 2) for n in range(1, 6)}}, 40 + 30 + 50, id="places"
        ),
    ],
)
def test_the_estimate_uses_medians_of_runs_left(options: dict[str, object], seconds: float) -> None:
    assert seconds_left(rollout([1, 2, 3, 4], [5], **options)) == seconds


def test_ended_runs_take_no_time_and_an_unknown_duration_has_no_estimate() -> None:
    state = rollout([1, 2], [5])
    state.take(runs_started(NodeRun(1, node(2))))
    assert seconds_left(state) == 20 + 50
    state.take(run_ended(NodeRun(1, node(2))))
    assert seconds_left(state) == 10 + 50
    assert seconds_left(rollout([1, 6], [5])) is None
    state.take(rollout_stopped(RolloutEnding.STOPPED))
    assert seconds_left(state) is None
