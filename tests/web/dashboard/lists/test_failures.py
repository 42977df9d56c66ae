"""One row for the failure that broke many nodes."""

from typing import Any

from localpuppet.fleet.inventory.node_row import NodeRow
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.web.dashboard.lists.failures import FailureGroup, failures
from localpuppet.web.dashboard.lists.list_query import FAILURES, ListQuery
from localpuppet.web.dashboard.lists.node_standings import NodeStandings
from tests.fleet.history.records import a_row

NOW = 1_795_000_000.0


def bad(node: str, error: str, **more: Any) -> NodeRow:
    fields = {"outcome": Kind.FAILED, "finished_at": NOW, "run": "r", "place": "init.pp:3", **more}
    return a_row(node, error=error, **fields)


ROWS = [
    *(bad(f"web{n:03}", "A", outcome=Kind.COMPILE_FAILED, finished_at=NOW - n) for n in range(300)),
    bad("db1", "B", resource="File[/srv/db1]", finished_at=NOW - 500),
    bad("db2", "B", resource="File[/srv/db2]", finished_at=NOW - 400, outcome=Kind.TIMED_OUT),
    bad("db3", "B", place="init.pp:9"),
    a_row("fine", outcome=Kind.CHANGED, finished_at=NOW),
    a_row("away"),
]


def found(said: dict[str, str], **more: Any) -> list[FailureGroup]:
    asked = ListQuery.parse(said, FAILURES)
    return failures(NodeStandings(ROWS), asked, **{"names": None, "seen": {}, **more})


def test_a_failure_is_a_single_row_for_all_its_nodes() -> None:
    first, second, third = found({})
    assert (first.error, len(first.nodes), first.kinds) == ("A", 300, (Kind.COMPILE_FAILED,))
    assert (first.first, first.last, first.newest) == (NOW - 299, NOW, ("web000", "r"))
    assert (second.nodes, second.resource) == (("db1", "db2"), "File[…]")
    assert second.kinds == (Kind.FAILED, Kind.TIMED_OUT)
    assert (third.nodes, third.place) == (("db3",), "init.pp:9")


def test_filters_count_only_the_matching_nodes() -> None:
    assert [len(one.nodes) for one in found({"name": "web00"})] == [10]
    assert [one.nodes for one in found({"outcome": "timed out"})] == [("db2",)]
    assert [one.nodes for one in found({}, names=frozenset({"db3", "fine"}))] == [("db3",)]
    assert found({"outcome": "changed"}) == []


def test_the_order_can_be_reversed() -> None:
    assert [one.nodes[0] for one in found({"sort": "nodes"})] == ["db3", "db1", "web000"]
    assert [one.nodes[0] for one in found({"sort": "-error"})] == ["db3", "db1", "web000"]
    assert found({"sort": "-place"})[0].nodes == ("db3",)
    assert [one.nodes[0] for one in found({"sort": "first"})] == ["db1", "web000", "db3"]


def test_of_failures_of_equally_many_nodes_the_newest_is_first() -> None:
    rows = [bad("x1", "A", failing_since=NOW - 50), bad("x2", "C", failing_since=NOW - 5)]
    asked = ListQuery.parse({}, FAILURES)
    groups = failures(NodeStandings(rows), asked, names=None, seen={})
    assert [one.nodes for one in groups] == [("x2",), ("x1",)]


def test_a_failure_that_was_seen_before_is_as_old_as_that() -> None:
    (one,) = found(
        {"name": "db3"}, seen={found({"name": "db3"})[0].failure_cause: (NOW - 9e6, NOW - 5)}
    )
    assert (one.first, one.last) == (NOW - 9e6, NOW)
