"""The view of a rollout: the states add up, and are correct during and after it."""

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from localpuppet.base.errors import StateError
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.formats.times import show_time
from localpuppet.rollout.cli.rollout_text import how_far
from localpuppet.rollout.events import (
    ChecksEnded,
    Event,
    LastRunsReported,
    NodeResult,
    NodeRun,
    NodeRunEnded,
    NodeRunsStarted,
    NodeRunsWithdrawn,
    NodeRunUnanswered,
    NodesSkipped,
    RolloutContinued,
    RolloutEnded,
    RolloutEnding,
    RolloutPaused,
    RolloutResumed,
    RolloutStopped,
    StagingEnded,
)
from localpuppet.rollout.rollout_options import (
    Amount,
    Delivery,
    OnFailure,
    PauseAfter,
    RolloutOptions,
    describe_options,
)
from localpuppet.rollout.rollout_report import RolloutReport
from localpuppet.rollout.rollout_view import WIDTH, RolloutView, TimeLine
from localpuppet.rollout.state import OPEN, ProgressState, RolloutState
from tests.rollout.simulated import began, node

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
RELEASE = Delivery(release=ReleasePath("shop/tags/r7"))
GROUPS = ([1, 2, 3], [2, 4])
FIRST = began(*GROUPS, delivery=RELEASE, checks=("http://a/",), on_failure=OnFailure.ROLLBACK)
FAILURES = RolloutStopped(ending=RolloutEnding.FAILED, reason="1 node failed")

turns = st.sampled_from(
    [
        NodeRun(step, node(one))
        for step, nodes in enumerate((*GROUPS, [1, 2, 3, 4]), 1)
        for one in nodes
    ]
)
results = st.sampled_from(
    [NodeResult.SUCCEEDED, NodeResult.FAILED, NodeResult.UNRESPONSIVE, NodeResult.NOT_REACHED]
)
endings = st.sampled_from(RolloutEnding)
events: st.SearchStrategy[Event] = st.one_of(
    st.builds(NodeRunsStarted, node_runs=st.tuples(turns)),
    st.builds(NodeRunEnded, node_run=turns, result=results),
    st.builds(ChecksEnded, node_run=turns, problem=st.sampled_from(["", "answered 503"])),
    st.builds(NodeRunUnanswered, node_run=turns, problem=st.sampled_from(["", "no answer"])),
    st.builds(NodeRunsWithdrawn, node_runs=st.tuples(turns)),
    st.builds(NodesSkipped, reasons=st.dictionaries(st.sampled_from([node(4)]), st.just("late"))),
    st.builds(StagingEnded, serials=st.just({})),
    st.builds(RolloutPaused, reason=st.just("1 node failed"), since=st.just(NOON)),
    st.builds(RolloutContinued, caller=st.just("choria=bob")),
    st.builds(RolloutStopped, ending=endings, reason=st.just("why")),
    st.builds(RolloutResumed),
    st.builds(RolloutEnded, ending=endings, reason=st.just("why"), still_held=st.just({})),
)


def view(*later: Event, taken: bool = True, first: Event = FIRST) -> RolloutView:
    """Return the view of a rollout whose events come ten seconds apart, a minute after the last."""
    times = [NOON + timedelta(seconds=10 * number) for number in range(len(later) + 1)]
    timed = [(show_time(at), event) for at, event in zip(times, (first, *later), strict=True)]
    return RolloutView.of(RolloutReport.of(timed, taken=taken), times[-1] + timedelta(minutes=1))


def possible(sequence: list[Event]) -> list[Event]:
    """Return the events without those that no journal can have in this order."""
    state, kept = RolloutState(FIRST), []
    for event in sequence:
        try:
            state.take(event)
        except StateError:
            continue
        kept.append(event)
    return kept


@given(st.lists(events, max_size=25), st.booleans())
def test_the_counts_of_states_add_up_for_any_events(sequence: list[Event], taken: bool) -> None:
    found = view(*possible(sequence), taken=taken)
    assert sum(found.counts.values()) == 4
    told = found.report.to_dict()
    assert found.counts == told["counts"] == found.report.counts()
    for group, json in zip(found.groups, told["groups"], strict=True):
        states = [run.state for run in group.runs]
        assert sum(group.counts.values()) == len(states)
        assert (group.state, [*map(str, states)]) == (
            json["state"],
            [run["state"] for run in json["runs"]],
        )
        assert group.state in states
        if group.state is ProgressState.DONE:
            assert set(states) <= {ProgressState.DONE, ProgressState.SKIPPED}
        assert (group.state in OPEN) == any(state in OPEN for state in states)
    if found.report.state.over is not None:
        assert not {*map(str, OPEN)} & {*found.counts, *(group.state for group in found.groups)}
        assert (found.waiting, found.left) == (None, "")
    line = TimeLine.of(found, NOON + timedelta(hours=1))
    for group in found.groups:
        for run in group.runs:
            for bar in line.draw(run):
                assert 0 <= float(bar.attrib["x"]) < WIDTH
                assert 0 < float(bar.attrib["x"]) + float(bar.attrib["width"]) <= WIDTH + 0.1


def states(found: RolloutView) -> list[tuple[str, list[str]]]:
    return [(group.state, [run.text for run in group.runs]) for group in found.groups]


def ended(turn: NodeRun, result: NodeResult = NodeResult.SUCCEEDED) -> NodeRunEnded:
    outcome = "changed" if result is NodeResult.SUCCEEDED else "failed"
    return NodeRunEnded(node_run=turn, result=result, outcome=outcome)


def test_a_rollout_from_its_start_to_the_end_of_its_rollback() -> None:
    """After the rollback, the group whose nodes ran is `rolled back`, and the other is not."""
    one, two, three = (NodeRun(1, node(number)) for number in (1, 2, 3))
    first = replace(FIRST, options=replace(FIRST.options, checks=()))
    path: list[Event] = [StagingEnded(serials={node(1): 1})]
    assert states(view(first=first)) == [
        ("not started", ["not started"] * 3),
        ("not started", ["not started"] * 2),
    ]
    assert view(first=first).waiting is not None
    path += [NodeRunsStarted(node_runs=(one, two))]
    during = view(*path, first=first)
    assert states(during)[0] == ("running", ["running", "running", "waiting"])
    assert during.counts == {"running": 2, "waiting": 1, "not started": 1}
    assert during.waiting is not None
    assert during.waiting.what == f"{node(1)}, {node(2)}"
    assert during.waiting.until == NOON + timedelta(hours=1, seconds=20)
    path += [ended(one), ended(two, NodeResult.FAILED), FAILURES]
    assert states(view(*path, first=first)) == [
        ("waiting", ["waiting, to roll back", "waiting, to roll back", "not reached"]),
        ("not reached", ["not reached", "not reached"]),
    ]
    back = [NodeRun(3, node(1)), NodeRun(3, node(2))]
    path += [NodeRunsStarted(node_runs=tuple(back)), *map(ended, back)]
    path += [RolloutEnded(ending=RolloutEnding.FAILED, reason="1 failed", still_held={})]
    after = view(*path, first=first, taken=False)
    assert states(after) == [
        ("rolled back", ["rolled back", "rolled back", "not reached"]),
        ("not reached", ["not reached", "not reached"]),
    ]
    assert after.counts == {"rolled back": 2, "not reached": 2}
    assert after.rollback is not None
    assert after.rollback.state == "rolled back"
    assert three.node not in after.report.state.took


def test_a_rollback_of_an_unresponsive_node_waits_for_it() -> None:
    """Only a node that answers is running."""
    turns = [NodeRun(1, node(1)), NodeRun(1, node(2))]
    back = tuple(NodeRun(3, turn.node) for turn in turns)
    first = replace(FIRST, options=replace(FIRST.options, checks=()))
    events = (
        StagingEnded(serials={node(1): 1}),
        NodeRunsStarted(node_runs=tuple(turns)),
        ended(turns[0], NodeResult.FAILED),
        ended(turns[1], NodeResult.UNRESPONSIVE),
        FAILURES,
        NodeRunsStarted(node_runs=back),
    )
    answers = NodeRunUnanswered(node_run=back[1], problem="")
    dies = NodeRunUnanswered(node_run=back[0], problem="did not answer")
    later = (((), "1"), ((answers, dies), "2"))
    for more, running in later:
        found = view(*events, *more, first=first)
        assert (found.counts["running"], found.counts["waiting"]) == (1, 1)
        assert f"1 running ({node(int(running))})" in how_far(found.report.state)


def test_a_group_whose_only_node_failed_has_failed() -> None:
    turn = NodeRun(1, node(1))
    found = view(
        NodeRunsStarted(node_runs=(turn,)),
        ended(turn, NodeResult.FAILED),
        FAILURES,
        RolloutEnded(ending=RolloutEnding.FAILED, reason="1 node failed", still_held={}),
        first=began([1], [2]),
        taken=False,
    )
    assert [group.state for group in found.groups] == ["failed", "not reached"]


def test_a_result_that_never_arrived_is_a_failure_and_not_unreached() -> None:
    turn = NodeRun(1, node(1))
    stopped = RolloutEnded(ending=RolloutEnding.STOPPED, reason="stopped by bob", still_held={})
    found = view(NodeRunsStarted(node_runs=(turn,)), stopped, first=began([1, 2]), taken=False)
    assert found.counts == {"failed": 1, "not reached": 1}
    assert found.groups[0].runs[0].reason == "the rollout ended before the result was known"
    again = view(NodeRunsStarted(node_runs=(turn,)), stopped, RolloutResumed(), first=began([1, 2]))
    assert again.counts == {"running": 1, "waiting": 1}


def test_the_view_shows_what_a_rollout_waits_for_and_how_long_it_takes() -> None:
    turn = NodeRun(1, node(1))
    measured = LastRunsReported(durations={node(1): (60.0,), node(2): (60.0,)})
    running = view(measured, NodeRunsStarted(node_runs=(turn,)), first=began([1], [2]))
    assert (running.seconds, running.left) == (80.0, "about 2m left")
    paused = RolloutPaused(reason="1 node failed", since=NOON)
    waits = view(ended(turn, NodeResult.FAILED), paused, first=began([1], [2])).waiting
    assert waits is not None
    assert (waits.what, waits.until) == (
        "an operator, to continue or stop it",
        NOON + timedelta(hours=1),
    )
    left = view(measured, taken=False, first=began([1], [2]))
    assert left.waiting is not None
    assert "resume it" in left.waiting.what
    assert left.left == ""
    names = dict(left.facts())
    assert (names["By"], names["Elapsed"]) == ("choria=alice", "1m 10s")


def test_a_release_is_shown_with_the_ones_before_it() -> None:
    before = {"shop/tags/r6": 3, "shop/tags/r7": 1}
    reported = LastRunsReported(durations={}, releases=before)
    later = LastRunsReported(durations={}, releases={"shop/tags/r5": 4})
    found = view(reported, later, first=began([1], delivery=RELEASE))
    assert found.previous == {"shop/tags/r6": 3}
    assert dict(found.facts())["Release"] == "shop/tags/r6 → shop/tags/r7"
    without = view(reported, first=began([1]))
    assert (without.change, without.previous) == ("", {})


def test_a_rollout_with_an_allowed_failure_is_not_simply_done() -> None:
    turns = [NodeRun(1, node(number)) for number in (1, 2)]
    over = RolloutEnded(ending=RolloutEnding.DONE, reason="", still_held={})
    runs = [ended(turns[0], NodeResult.FAILED), ended(turns[1], NodeResult.SUCCEEDED)]
    assert view(*runs, over, first=began([1, 2])).report.word == "done with failures"
    assert view(runs[1], over, first=began([2])).report.word == "done"


def test_each_option_has_a_description() -> None:
    changed = RolloutOptions(
        canary=1,
        window=5,
        max_failures=Amount(number=10, percent=True),
        tags=("web",),
        timeout=60.0,
        skip_unready=True,
        checks=("http://a/",),
        on_failure=OnFailure.PAUSE,
        pause=(PauseAfter.GROUPS,),
        pause_at_most=60.0,
        investigate=60.0,
        one_at_a_time_by="zone",
        until=NOON,
    )
    words = describe_options(changed)
    assert "pauses after each group" in words
    assert "1 canary in each group" in words
    assert not any("[" in word or "'" in word for word in words)
    usual = RolloutOptions()
    for field in fields(RolloutOptions):
        if field.name in ("batch", "noop", "delivery"):
            continue
        without = replace(changed, **{field.name: getattr(usual, field.name)})
        assert len(describe_options(without)) == len(words) - 1, field.name
    assert describe_options(RolloutOptions(noop=True)) == ("changes nothing",)
    assert describe_options(RolloutOptions(batch=Amount(number=25, percent=True))) == (
        "batches of 25% of the nodes",
    )
    assert describe_options(usual) == ()
