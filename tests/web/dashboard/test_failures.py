"""One row for the failure that broke many nodes."""

from typing import Any

from localpuppet.fleet.inventory.node_row import NodeRow
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.web.dashboard import failures
from localpuppet.web.dashboard.failures import FailureGroup
from localpuppet.web.dashboard.list_query import FAILURES, ListQuery
from tests.fleet.make import a_row
from tests.web.dashboard.site import run_id
from tests.web.dashboard.test_nodes import table_of

NOW = 1_795_000_000.0
RUN = run_id(NOW)


def bad(node: str, error: str, **more: Any) -> NodeRow:
    fields = {"outcome": Kind.FAILED, "finished_at": NOW, "run": RUN, "place": "init.pp:3", **more}
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
    return groups_of(ROWS, said, **more)


def groups_of(
    rows: list[NodeRow],
    said: dict[str, str],
    names: frozenset[str] | None = None,
    seen: tuple[object, ...] | None = None,
) -> list[FailureGroup]:
    asked = ListQuery.parse(said, FAILURES)
    with table_of(rows) as table:
        if seen is not None:
            table.connection.execute("INSERT INTO failures VALUES (?, ?, ?, 'db3')", seen)
        return list(failures.listed(table.connection, asked, names).rows)


def test_a_failure_is_a_single_row_for_all_its_nodes() -> None:
    first, second, third = found({})
    assert (first.error, len(first.nodes), first.kinds) == ("A", 300, [Kind.COMPILE_FAILED])
    assert (first.first, first.last, first.newest) == (NOW - 299, NOW, ("web000", RUN))
    assert (second.nodes, second.resource) == (["db1", "db2"], "File[…]")
    assert second.kinds == [Kind.FAILED, Kind.TIMED_OUT]
    assert (third.nodes, third.place) == (["db3"], "init.pp:9")


def test_filters_count_only_the_matching_nodes() -> None:
    assert [len(one.nodes) for one in found({"name": "web00"})] == [10]
    assert [one.nodes for one in found({"outcome": "timed out"})] == [["db2"]]
    assert [one.nodes for one in found({}, names=frozenset({"db3", "fine"}))] == [["db3"]]
    assert found({"outcome": "changed"}) == []


def test_the_order_can_be_reversed() -> None:
    assert [one.nodes[0] for one in found({"sort": "nodes"})] == ["db3", "db1", "web000"]
    assert [one.nodes[0] for one in found({"sort": "-error"})] == ["db3", "db1", "web000"]
    assert found({"sort": "-place"})[0].nodes == ["db3"]
    assert [one.nodes[0] for one in found({"sort": "first"})] == ["db1", "web000", "db3"]


def test_of_failures_of_equally_many_nodes_the_newest_is_first() -> None:
    rows = [bad("x1", "A", failing_since=NOW - 50), bad("x2", "C", failing_since=NOW - 5)]
    assert [one.nodes for one in groups_of(rows, {})] == [["x2"], ["x1"]]


def test_a_failure_that_was_seen_before_is_as_old_as_that() -> None:
    (one,) = found(
        {"name": "db3"}, seen=(found({"name": "db3"})[0].failure_cause, NOW - 9e6, NOW - 5)
    )
    assert (one.first, one.last) == (NOW - 9e6, NOW)
