"""A rollout group by group."""

from localpuppet.base.formats.names import NodeName, RolloutId
from localpuppet.base.formats.times import parse_time
from localpuppet.rollout.execution.events import (
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
from localpuppet.rollout.execution.options import RolloutOptions
from localpuppet.rollout.execution.report import RolloutReport
from localpuppet.web.dashboard.lists.list_query import ROLLOUTS, ListQuery
from localpuppet.web.dashboard.lists.rollouts import (
    FEWEST,
    MOST_NODES,
    RolloutRow,
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


def test_each_node_has_a_word_and_what_went_wrong_comes_first() -> None:
    turns = [NodeRun(1, node(number)) for number in range(3)]
    first, second = groups_of(
        report(
            NodeRunsStarted(node_runs=tuple(turns)),
            NodeRunEnded(
                node_run=turns[0], result=NodeResult.SUCCEEDED, outcome="changed", run="r"
            ),
            NodeRunEnded(node_run=turns[2], result=NodeResult.UNRESPONSIVE, reason="said nothing"),
            NodesSkipped(reasons={node(3): "on hold"}),
        )
    )
    assert [(part.node, part.word) for part in first.parts] == [
        ("n0002", "unresponsive"),
        ("n0001", "running"),
        ("n0000", "being checked"),
    ]
    assert (first.ended, first.bad, first.word) == (1, 1, "running")
    assert first.parts[0].reason == "said nothing"
    assert [(part.word, part.reason) for part in second.parts] == [
        ("open", ""),
        ("open", ""),
        ("skipped", "on hold"),
    ]


def test_a_page_names_so_many_nodes_whatever_the_rollout() -> None:
    (only,) = groups_of(report(groups=1, each=5000))
    assert (len(only.parts), only.total) == (MOST_NODES, 5000)
    many = groups_of(report(groups=100, each=50))
    assert {len(group.parts) for group in many} == {FEWEST}


def test_rollouts_are_filtered_and_sorted() -> None:
    row = RolloutRow.of(report())
    assert (row.nodes, row.state, row.counts) == (6, "running", (("open", 6),))
    old = RolloutRow(id="20261121T110000Z-00aa", state="done", started_at=1.0, title="db")

    def found(said: dict[str, str]) -> list[str]:
        return [one.id for one in rollouts([old, row], ListQuery.parse(said, ROLLOUTS))]

    assert found({}) == [row.id, old.id]
    assert found({"sort": "title"}) == [old.id, row.id]
    assert found({"name": "ALICE"}) == [row.id]


def test_a_decision_has_its_time() -> None:
    ((at, what),) = decisions_of(
        report(RolloutStopped(ending=RolloutEnding.STOPPED, reason="alice says so"))
    )
    assert at == parse_time(LATER).timestamp()
    assert what == "no further nodes start: alice says so"
