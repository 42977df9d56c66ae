"""Lists: filtered, sorted, paged, counted."""

from localpuppet.fleet.inventory.node_row import HoldView
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.web.dashboard.lists.list_page import MOST, chosen, overview, paged
from localpuppet.web.dashboard.lists.list_query import PAGE, ListQuery
from localpuppet.web.dashboard.lists.node_standings import NodeStandings
from tests.fleet.history.records import a_row

NOW = 1_795_000_000.0
FREE = HoldView(owner="alice", reason="x", until=NOW + 60)
FOREVER = HoldView(owner="bob", reason="x", until=None)
ROWS = [
    a_row("c", state="idle", outcome=Kind.FAILED, finished_at=NOW - 10, release="web/tags/r2"),
    a_row("a", state="idle", outcome=Kind.CHANGED, finished_at=NOW - 9000, run_interval=60.0),
    a_row("b", state="on hold", outcome=Kind.CHANGED, finished_at=NOW - 30, holds=(FOREVER,)),
    a_row("e", state="applying", outcome=Kind.COMPILE_FAILED, finished_at=NOW - 5, holds=(FREE,)),
    a_row("d", state="not trusted"),
]


def found(said: dict[str, str], names: frozenset[str] | None = None) -> str:
    return "".join(
        row.node for row in chosen(NodeStandings(ROWS), ListQuery.parse(said), names=names, now=NOW)
    )


def test_orders_are_total_and_can_be_reversed() -> None:
    assert found({}) == "abcde"
    assert found({"sort": "-node"}) == "edcba"
    assert found({"sort": "-finished_at"}) == "ecbad"
    assert found({"sort": "outcome"}) == "ecabd"  # as bad as it is; of equal ones by name
    assert found({"sort": "-outcome"}) == "dabce"


def test_filters_add_up() -> None:
    assert found({"outcome": "changed"}) == "ab"
    assert found({"outcome": "changed", "is": "late"}) == "a"
    assert found({"is": "on hold"}) == "be"  # one of them runs all the same
    assert found({"is": "not trusted"}) == "d"
    assert found({"name": "c"}) == "c"
    assert found({}, frozenset("ad")) == "ad"
    assert found({}, frozenset()) == ""


def test_a_page_has_a_fixed_number_of_rows_and_the_page_after_the_last_is_empty() -> None:
    rows = [a_row(f"n{number:03}") for number in range(PAGE + 1)]
    first, second, third = (paged(rows, number) for number in (1, 2, 3))
    assert (len(first.rows), first.first, first.pages) == (PAGE, 1, 2)
    assert ([row.node for row in second.rows], second.first) == ([f"n{PAGE}"], PAGE + 1)
    assert (third.rows, third.first, third.total) == ([], 0, PAGE + 1)
    assert paged([], 1).pages == 1


def test_the_overview_counts_each_node_once_and_sorts_holds_by_their_end() -> None:
    all_ = overview(NodeStandings(ROWS), names=None, now=NOW)
    assert all_.total == sum(count for _, count in all_.kinds) == 5
    assert dict(all_.kinds)[Kind.CHANGED] == 2
    assert [row.node for row in all_.held] == ["e", "b"]
    assert [row.node for row in all_.late] == ["a"]
    assert [row.node for row in all_.strangers] == ["d"]
    assert all_.concerns["on hold"] == 2
    some = overview(NodeStandings(ROWS), names=frozenset("cd"), now=NOW)
    assert (some.total, some.concerns["late"]) == (2, 0)


def test_the_overview_is_short_also_for_a_large_fleet() -> None:
    rows = [a_row(f"n{number}", holds=(FOREVER,)) for number in range(1000)]
    assert len(overview(NodeStandings(rows), names=None, now=NOW).held) == MOST
