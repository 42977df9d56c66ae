"""The views of a rollout: states, metrics, and the report as one HTML file."""

from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from localpuppet.base.errors import StateError
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.formats.prometheus import parse_samples
from localpuppet.base.formats.times import parse_time, show_time
from localpuppet.rollout.cli.rollout_text import how_far
from localpuppet.rollout.events import (
    ChangesApproved,
    ChangesPredicted,
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
    RolloutBegan,
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
    compare,
    describe_options,
)
from localpuppet.rollout.rollout_report import RolloutReport, update_metrics
from localpuppet.rollout.rollout_view import WIDTH, RolloutView, TimeLine, page
from localpuppet.rollout.state import OPEN, ProgressState, RolloutState
from tests.rollout.make import (
    ID,
    RELEASE,
    approved,
    began,
    change,
    foretold,
    node,
    rollout_over,
    rollout_stopped,
    run_ended,
    runs_started,
)

NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
GROUPS = ([1, 2, 3], [2, 4])
FIRST = began(*GROUPS, delivery=RELEASE, checks=("http://a/",), on_failure=OnFailure.ROLLBACK)
FAILURES = rollout_stopped(RolloutEnding.FAILED, "1 node failed")

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
    return run_ended(turn, result, outcome=outcome)


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
    path += [runs_started(one, two)]
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
    path += [runs_started(*back), *map(ended, back)]
    path += [rollout_over(RolloutEnding.FAILED, "1 failed")]
    after = view(*path, first=first, taken=False)
    assert states(after) == [
        ("rolled back", ["rolled back", "rolled back, failed", "not reached"]),
        ("not reached", ["not reached", "not reached"]),
    ]
    assert [run.tone for run in after.groups[0].runs] == ["warn", "bad", "warn"]
    assert after.counts == {"rolled back": 2, "not reached": 2}
    assert after.rollback is not None
    assert after.rollback.state == "rolled back"
    assert three.node not in after.report.state.took


def test_the_headline_names_release_nodes_state_and_the_first_failed_node() -> None:
    one, two, three = (NodeRun(1, node(number)) for number in (1, 2, 3))
    first = began([1, 2, 3], delivery=RELEASE, on_failure=OnFailure.ROLLBACK)
    back = [NodeRun(2, turn.node) for turn in (one, two)]
    path: list[Event] = [StagingEnded(serials={node(1): 1}), runs_started(one, two)]
    head, failed = "r7 → 3 nodes: ", f"{node(2)} failed"
    steps: tuple[tuple[list[Event], str, bool], ...] = (
        ([], "running", True),
        ([ended(one), ended(two, NodeResult.FAILED)], f"running, {failed}", True),
        ([FAILURES, runs_started(*back)], f"rolling back, {failed}", True),
        ([], f"interrupted, {failed}", False),
        ([ended(back[1]), ended(back[0], NodeResult.FAILED)], "", True),
        (
            [rollout_over(RolloutEnding.FAILED)],
            f"rollback failed, {node(2)} and 1 more failed",
            False,
        ),
    )
    for more, words, taken in steps:
        path += more
        if words:
            assert view(*path, first=first, taken=taken).headline == f"{head}{words}"
    culprits = view(*path, first=first, taken=False).culprits
    assert [(run.node_run, run.text) for run in culprits] == [
        (two, "rolled back, failed"),
        (back[0], "failed, rollback failed"),
    ]
    alone = (began([3]), runs_started(three), ended(three, NodeResult.FAILED))
    over = rollout_over(RolloutEnding.FAILED, "1 node failed")
    assert (
        view(*alone[1:], over, first=alone[0], taken=False).headline
        == f"{node(3)}: {node(3)} failed"
    )
    assert view(over, first=began([1, 2]), taken=False).headline == "2 nodes: failed"


def test_a_rollback_of_an_unresponsive_node_waits_for_it() -> None:
    """Only a node that answers is running."""
    turns = [NodeRun(1, node(1)), NodeRun(1, node(2))]
    back = tuple(NodeRun(3, turn.node) for turn in turns)
    first = replace(FIRST, options=replace(FIRST.options, checks=()))
    events = (
        StagingEnded(serials={node(1): 1}),
        runs_started(*turns),
        ended(turns[0], NodeResult.FAILED),
        ended(turns[1], NodeResult.UNRESPONSIVE),
        FAILURES,
        runs_started(*back),
    )
    answers = NodeRunUnanswered(node_run=back[1], problem="")
    dies = NodeRunUnanswered(node_run=back[0], problem="did not answer")
    later = (((), "1"), ((answers, dies), "2"))
    for more, running in later:
        found = view(*events, *more, first=first)
        assert (found.counts["running"], found.counts["waiting"]) == (1, 1)
        assert f"1 running ({node(int(running))})" in how_far(found.report.state)


def test_a_result_that_never_arrived_is_a_failure_and_not_unreached() -> None:
    turn = NodeRun(1, node(1))
    stopped = rollout_over(RolloutEnding.STOPPED, "stopped by bob")
    found = view(runs_started(turn), stopped, first=began([1, 2]), taken=False)
    assert found.counts == {"failed": 1, "not reached": 1}
    assert found.groups[0].runs[0].reason == "the rollout ended before the result was known"
    again = view(runs_started(turn), stopped, RolloutResumed(), first=began([1, 2]))
    assert again.counts == {"running": 1, "waiting": 1}


def test_the_view_shows_what_a_rollout_waits_for_and_how_long_it_takes() -> None:
    turn = NodeRun(1, node(1))
    measured = LastRunsReported(durations={node(1): (60.0,), node(2): (60.0,)})
    running = view(measured, runs_started(turn), first=began([1], [2]))
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
    over = rollout_over()
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
    assert "pauses before each group but the first" in words
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


TWO_GROUPS = began([1], [2])
SUCCESS = "localpuppet_last_rollout_success_timestamp_seconds"


def told(path: Path, *events: Event, taken: bool = False, now: int = 60) -> dict[str, str]:
    """Return the values in the file after events ten seconds apart, without the metrics' prefix."""
    timed = [(show_time(NOON + timedelta(seconds=10 * n)), one) for n, one in enumerate(events)]
    metrics = path.with_name("m.prom")
    update_metrics(metrics, RolloutReport.of(timed, taken=taken), now=NOON + timedelta(seconds=now))
    found = parse_samples(path.read_text())
    return {name.removeprefix("localpuppet_last_rollout_"): found[name] for name in found}


def done(first: RolloutBegan) -> list[Event]:
    """Return the events of a rollout whose nodes all succeed, in 30 seconds."""
    turns = (NodeRun(1, node(1)), NodeRun(2, node(2)))
    ends = [run_ended(turn, outcome="changed") for turn in turns]
    return [first, runs_started(*turns), *ends]


def test_a_running_rollout_has_its_metrics(tmp_path: Path) -> None:
    paused = RolloutPaused(reason="before group 2")
    found = told(tmp_path / "m-rollouts.prom", *done(TWO_GROUPS)[:3], paused, taken=True)
    assert found[f'info{{id="{ID}"}}'] == "1"
    assert (found["running"], found["paused"], found["success"]) == ("1", "1", "0")
    assert (found['nodes{state="done"}'], found['nodes{state="running"}']) == ("1", "1")
    assert found["duration_seconds"] == "60.000"
    assert found["start_timestamp_seconds"] == f"{NOON.timestamp():.3f}"
    assert found["resumptions"] == "0"
    assert "end_timestamp_seconds" not in found
    assert not any(value == "1" for name, value in found.items() if name.startswith("outcome"))


def test_a_finished_rollout_has_its_metrics(tmp_path: Path) -> None:
    over = rollout_over()
    found = told(tmp_path / "m-rollouts.prom", *done(TWO_GROUPS), over)
    assert (found["running"], found["success"], found['outcome{outcome="done"}']) == ("0", "1", "1")
    assert found['nodes{state="done"}'] == "2"
    assert found["duration_seconds"] == "40.000"
    assert found["end_timestamp_seconds"] == f"{NOON.timestamp() + 40:.3f}"


def test_the_last_success_outlives_failures_and_ignores_noop_rollouts(tmp_path: Path) -> None:
    path = tmp_path / "m-rollouts.prom"
    over = rollout_over()
    told(path, *done(began([1], [2], noop=True)), over)
    assert SUCCESS not in parse_samples(path.read_text())
    told(path, *done(TWO_GROUPS), over)
    failed = told(path, TWO_GROUPS, rollout_over(RolloutEnding.FAILED))
    assert failed["success"] == "0"
    assert parse_samples(path.read_text())[SUCCESS] == f"{NOON.timestamp() + 40:.3f}"


def test_an_invalid_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "m-rollouts.prom"
    path.write_bytes(b"\xff not text")
    assert told(path, TWO_GROUPS)["running"] == "0"
    assert path.stat().st_mode & 0o777 == 0o644


NOW = parse_time("2026-11-22T12:00:00Z")
EVIL = "</td><script>alert(1)</script>&\"'\x1b[2J\u202e"

HOSTILE = replace(
    began([1, 2], [3, 4], checks=("http://a/<b>",)), title=f"shop {EVIL}", caller=f"choria={EVIL}"
)


class Reader(HTMLParser):
    """Reads a page as a browser does: elements, texts, attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.values: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.values += [value or "" for _, value in attrs]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def report(*events: Event) -> RolloutReport:
    """Return a report of events that come ten seconds apart."""
    timed = [(f"2026-11-22T11:{n // 6:02}:{n % 6}0.000000Z", one) for n, one in enumerate(events)]
    return RolloutReport.of(timed, taken=False)


def test_texts_of_nodes_and_people_are_escaped() -> None:
    found = report(
        HOSTILE,
        NodesSkipped(reasons={node(4): EVIL}),
        runs_started(NodeRun(1, node(1)), NodeRun(1, node(2))),
        run_ended(NodeRun(1, node(1)), outcome=EVIL, run=EVIL),
        run_ended(NodeRun(1, node(2)), NodeResult.FAILED, outcome=EVIL, reason=EVIL),
        RolloutPaused(reason=EVIL),
        RolloutContinued(caller=EVIL),
        RolloutEnded(
            ending=RolloutEnding.FAILED,
            reason=EVIL,
            still_held={node(1): EVIL},
            held_for_investigation=(node(2),),
        ),
    )
    text = page(found, NOW)
    reader = Reader(text)
    assert "script" not in reader.tags
    assert sum("<script>alert(1)</script>" in one for one in reader.texts) >= 9
    assert not any("script" in value for value in reader.values)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert set(reader.tags) == {
        *("html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "p"),
        *("dl", "dt", "dd", "table", "thead", "tbody", "tr", "th", "td", "span"),
        *("svg", "rect"),
    }
    assert not any(value.startswith(("http", "//")) for value in reader.values)


def test_the_report_shows_each_node_run_with_its_times_and_result() -> None:
    found = report(
        replace(HOSTILE, title="shop"),
        runs_started(NodeRun(1, node(1)), NodeRun(1, node(2))),
        run_ended(NodeRun(1, node(1)), outcome="changed", run="r1"),
        run_ended(NodeRun(1, node(2)), outcome="changed"),
        ChecksEnded(node_run=NodeRun(1, node(1)), problem="check http://a/: answered 503"),
        ChecksEnded(node_run=NodeRun(1, node(2))),
        rollout_over(RolloutEnding.FAILED, "1 node failed"),
    )
    texts = Reader(page(found, NOW)).texts
    for text in (
        "shop",
        f"4 nodes: {node(1)} failed",
        "failed: 1 node failed",
        "check http://a/: answered 503",
        "1 done, 1 failed, 2 not reached",
        " run r1",
        "done, changed",
        "failed",
        "Group 1: failed",
        "Group 2: not reached",
        "not reached",
        "2026-11-22 11:01:00 UTC",
    ):
        assert text in texts, text
    assert '<rect class="tone-bad" x="0" width="500" height="10"></rect>' in page(found, NOW)


def test_a_release_is_named_and_its_values_are_not() -> None:
    delivery = Delivery(
        release=ReleasePath.parse("shop/tags/r2", where=""),
        layers=(),
        classes={"shop": {"banner": "canary-6f1e"}},
        allow_older=False,
    )
    first = replace(HOSTILE, options=RolloutOptions(delivery=delivery, window=2))
    text = page(report(first), NOW)
    assert {"shop/tags/r2", "at most 2 nodes at a time"} <= set(Reader(text).texts)
    assert "canary-6f1e" not in text


def test_the_report_shows_unapproved_changes_and_who_approved_them() -> None:
    turn, more = NodeRun(1, node(1)), change(EVIL)
    found = compare(foretold(), foretold(more))
    told = report(
        approved(HOSTILE),
        runs_started(turn),
        ChangesPredicted(node_run=turn, difference=found),
        RolloutPaused(reason="n01.example.com differs", needs_approval=True),
        ChangesApproved(node_run=turn, difference=found.digest, approved_by=EVIL),
        run_ended(turn, outcome="changed", predicted_changes=foretold(more)),
    )
    reader = Reader(page(told, NOW))
    assert "script" not in reader.tags
    assert {"Not approved before", "Would change"} <= set(reader.texts)
    assert any(one.startswith("would make 1 change") for one in reader.texts)
    (one,) = told.to_dict()["differences"]
    assert (one["node"], one["difference"], one["approved_by"]) == (node(1), found.digest, EVIL)
    assert one["changes"] == [{"type": "File", "title": EVIL, "property": "content"}]
    assert told.summary()["waits_for"] == []
    assert [what for _, what in told.decisions][-1].endswith(f"({found.digest})")
