"""A rollout group by group."""

from localpuppet.base.formats.names import NodeName, RolloutId
from localpuppet.base.formats.times import parse_time
from localpuppet.rollout.events import (
    Event,
    NodeResult,
    NodeRun,
    NodeRunEnded,
    NodeRunsStarted,
    NodesSkipped,
    RolloutBegan,
    RolloutEnding,
    RolloutStopped,
)
from localpuppet.rollout.rollout_options import RolloutOptions
from localpuppet.rollout.rollout_report import RolloutReport
from localpuppet.rollout.rollout_view import RolloutView
from localpuppet.web.dashboard.list_query import ROLLOUTS, ListQuery
from localpuppet.web.dashboard.rollouts import (
    FEWEST,
    MOST_ACTIVE,
    MOST_NODES,
    RolloutRow,
    ShownGroup,
    active_rollouts,
    decisions_of,
    groups_of,
    rollouts,
)

AT = "2026-11-22T11:00:00.000000Z"
LATER = "2026-11-22T11:00:30.000000Z"
ID = RolloutId.parse("20261122T110000Z-00aa")


def node(number: int) -> NodeName:
    return NodeName.parse(f"n{number:04}")


def report(*events: Event, groups: int = 2, each: int = 3) -> RolloutReport:
    began = RolloutBegan(
        id=ID,
        caller="choria=alice",
        groups=tuple(
            tuple(node(group * each + number) for number in range(each)) for group in range(groups)
        ),
        options=RolloutOptions(checks=("http://%{node}/",)),
        title="shop",
    )
    return RolloutReport.of([(AT, began), *((LATER, event) for event in events)], taken=True)


def shown(found: RolloutReport) -> list[ShownGroup]:
    now = parse_time(LATER)
    return groups_of(RolloutView.of(found, now), now=now)


def test_failed_runs_come_first_in_a_group() -> None:
    turns = [NodeRun(1, node(number)) for number in range(3)]
    first, second = shown(
        report(
            NodeRunsStarted(node_runs=tuple(turns)),
            NodeRunEnded(
                node_run=turns[0], result=NodeResult.SUCCEEDED, outcome="changed", run="r"
            ),
            NodeRunEnded(node_run=turns[2], result=NodeResult.UNRESPONSIVE, reason="said nothing"),
            NodesSkipped(reasons={node(3): "on hold"}),
        )
    )
    assert [(run.node, run.text) for run, _ in first.runs] == [
        ("n0002", "failed, unresponsive"),
        ("n0000", "running, being checked"),
        ("n0001", "running"),
    ]
    assert first.group.state == "running"
    assert first.runs[0][0].reason == "said nothing"
    assert 'class="tone-bad"' in first.runs[0][1]
    assert second.group.state == "not started"
    assert [(run.node, run.text, run.reason) for run, _ in second.runs] == [
        ("n0003", "skipped", "on hold"),
        ("n0004", "not started", ""),
        ("n0005", "not started", ""),
    ]


def test_a_page_names_a_limited_number_of_nodes_of_any_rollout() -> None:
    (only,) = shown(report(groups=1, each=5000))
    assert (len(only.runs), len(only.group.runs)) == (MOST_NODES, 5000)
    many = shown(report(groups=100, each=50))
    assert {len(group.runs) for group in many} == {FEWEST}


def test_rollouts_are_filtered_and_sorted() -> None:
    row = RolloutRow.of(report().summary())
    assert (row.nodes, row.state, row.counts) == (6, "running", (("not started", 6),))
    old = RolloutRow(id="20261121T110000Z-00aa", state="done", started_at=1.0, title="db")

    def found(said: dict[str, str]) -> list[str]:
        return [one.id for one in rollouts([old, row], ListQuery.parse(said, ROLLOUTS))]

    assert found({}) == [row.id, old.id]
    assert found({"sort": "title"}) == [old.id, row.id]
    assert found({"name": "ALICE"}) == [row.id]


def test_rollouts_in_progress_come_with_those_that_only_hold_nodes() -> None:
    """A node may name any rollout as the owner of its hold: known ones come first."""
    running, old = (
        RolloutRow.of(report().summary()),
        RolloutRow(id="20261121T110000Z-00aa", state="done"),
    )
    unknown = "20991121T110000Z-00bb"
    assert active_rollouts([old, running], {}) == [running]
    found = active_rollouts([old, running], {old.id: ["a"], unknown: ["b"]})
    assert [(row.id, row.state) for row in found] == [
        (running.id, "running"),
        (old.id, "done"),
        (unknown, "holding"),
    ]
    forged = {f"20991121T110000Z-{number:04x}": ["c"] for number in range(2 * MOST_ACTIVE)}
    many = active_rollouts([running], forged)
    assert (many[0], len(many)) == (running, MOST_ACTIVE)


def test_a_decision_has_its_time() -> None:
    ((at, what),) = decisions_of(
        report(RolloutStopped(ending=RolloutEnding.STOPPED, reason="alice says so"))
    )
    assert at == parse_time(LATER).timestamp()
    assert what == "no further nodes start: alice says so"
