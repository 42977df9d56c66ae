"""The totals over all nodes are correct after each change, which looks at no other node."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from localpuppet.fleet.inventory.node_row import (
    LATE,
    NODE_ORDERS,
    ON_HOLD,
    STATES,
    HoldView,
    NodeRow,
    is_older,
)
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.web.dashboard.lists.failures import failures
from localpuppet.web.dashboard.lists.list_page import chosen, overview
from localpuppet.web.dashboard.lists.list_query import (
    CONCERNS,
    FAILURES,
    NODES,
    RELEASES,
    ListQuery,
)
from localpuppet.web.dashboard.lists.node_standings import NodeStandings, has_run
from localpuppet.web.dashboard.lists.releases import ReleaseListContext, releases
from tests.fleet.history.records import a_row, an_end

NOW = 1_795_000_000.0
NODE = st.sampled_from([f"n{number}" for number in range(8)])
ROWS = st.builds(
    a_row,
    node=NODE,
    state=st.sampled_from(STATES),
    outcome=st.sampled_from(Kind),
    error=st.sampled_from(["", "A", "B"]),
    release=st.sampled_from(["", "web/tags/r7", "db/tags/r1", "web/trunk"]),
    release_digest=st.sampled_from(["", "a" * 64, "b" * 64]),
    input_release=st.sampled_from(["", "web/tags/r7"]),
    failing_since=st.sampled_from([None, NOW - 100_000]),
    finished_at=st.sampled_from([NOW - 90_000, NOW - 60, NOW]),
    run_interval=st.sampled_from([None, 60.0]),
    holds=st.sampled_from([(), (HoldView(owner="o", reason="r", until=NOW + 9),)]),
    received_at=st.sampled_from([None, NOW]),
)
# Nodes that join and change; a name alone is that of a forgotten node.
CHANGES = st.lists(ROWS | NODE, max_size=40)


def standing(changes: list[NodeRow | str]) -> tuple[NodeStandings, dict[str, NodeRow]]:
    """Return nodes after some changes, and which rows there are then."""
    found, rows = NodeStandings(), dict[str, NodeRow]()
    for one in changes:
        if isinstance(one, NodeRow):
            rows[one.node] = one
            found.put(one)
        elif rows.pop(one, None):
            found.forget(one)
    return found, rows


def is_(concern: str, row: NodeRow, odd: set[str]) -> bool:
    if concern == LATE:
        return row.late(NOW)
    if concern == "wrong release":
        return row.node in odd
    if concern == "rolled back":
        return row.input_release not in ("", row.release)
    return row.state == concern or (concern == ON_HOLD and bool(row.holds))


@given(CHANGES, st.none() | st.frozensets(NODE))
def test_after_any_changes_the_totals_equal_rebuilt_ones(
    changes: list[NodeRow | str], names: frozenset[str] | None
) -> None:
    found, rows = standing(changes)
    fresh = NodeStandings(rows.values())
    assert overview(found, names=names, now=NOW) == overview(fresh, names=names, now=NOW)
    asked = ListQuery.parse({}, FAILURES)
    assert [
        (one.failure_cause, one.nodes) for one in failures(found, asked, names=names, seen={})
    ] == [(one.failure_cause, one.nodes) for one in failures(fresh, asked, names=names, seen={})]
    ground, by_name = (
        ReleaseListContext(names=names, staged=()),
        ListQuery.parse({"sort": "release"}, RELEASES),
    )
    assert releases(found, by_name, ground) == releases(fresh, by_name, ground)
    assert sum(len(one.nodes) for one in releases(found, by_name, ground)) == sum(
        has_run(row) for row in rows.values() if names is None or row.node in names
    )


@given(
    CHANGES,
    st.sampled_from([*NODE_ORDERS]),
    st.booleans(),
    st.fixed_dictionaries(
        {},
        optional={
            "outcome": st.sampled_from(Kind),
            "is_": st.sampled_from(CONCERNS),
            "release": st.just("web/tags/r7"),
            "older": st.sampled_from(["r8", "web/tags/r7", "db/tags/r10"]),
            "name": st.sampled_from(["n", "1"]),
        },
    ),
    st.none() | st.frozensets(NODE),
)
def test_lists_equal_those_of_a_look_at_each_node(
    changes: list[NodeRow | str],
    sort: str,
    down: bool,
    filters: dict[str, Any],
    names: frozenset[str] | None,
) -> None:
    found, rows = standing(changes)
    asked = ListQuery(form=NODES, sort=sort, down=down, **filters)
    odd = set(found.wrong_releases())
    all_ = sorted(rows.values(), key=lambda row: row.node)
    key: Callable[[NodeRow], Any] = NODE_ORDERS[sort]
    if sort == "severity":
        key = partial(NodeRow.severity, now=NOW)
    expected = [
        row
        for row in sorted(all_, key=key, reverse=down)
        if (names is None or row.node in names)
        and asked.name in row.node
        and asked.outcome in (None, row.outcome)
        and asked.release in ("", row.release)
        and (not asked.older or (has_run(row) and is_older(row.release, asked.older)))
        and (not asked.is_ or is_(asked.is_, row, odd))
    ]
    assert chosen(found, asked, names=names, now=NOW) == expected


class Counted(dict[str, NodeRow]):
    """Rows that count how often a test reads one of them, and all of them."""

    looks: Counter[str]

    def __getitem__(self, name: str) -> NodeRow:
        self.looks["one"] += 1
        return super().__getitem__(name)

    def values(self) -> Any:
        self.looks["all"] += 1
        return super().values()


def test_a_change_and_the_overview_after_it_look_at_no_node_that_is_well() -> None:
    rows = [
        a_row(f"n{n}", state="idle", outcome=Kind.CHANGED, finished_at=NOW, release="a/tags/r1")
        for n in range(2000)
    ]
    bad = a_row("bad", outcome=Kind.FAILED, error="A", finished_at=NOW)
    found = NodeStandings([*rows, bad])
    counted = Counted(found.rows)
    counted.looks = Counter()
    found.rows = counted
    assert found.put(replace(rows[5], last=an_end(NOW)))
    assert not found.put(replace(counted["n5"], received_at=NOW)), (
        "only the time of the message is new"
    )
    assert overview(found, names=None, now=NOW).total == 2001
    assert len(failures(found, ListQuery.parse({}, FAILURES), names=None, seen={})) == 1
    ground = ReleaseListContext(names=None, staged=())
    assert [len(one.nodes) for one in releases(found, ListQuery.parse({}, RELEASES), ground)]
    assert counted.looks["all"] == 0
    assert counted.looks["one"] < 10


def test_a_node_that_publishes_ever_new_digests_does_not_fill_the_memory() -> None:
    first = a_row("a", release="web/tags/r7", release_digest="0")
    found = NodeStandings([first, replace(first, node="b")])
    for number in range(1, 100):
        found.put(replace(first, release_digest=str(number)))
    assert dict(found.tallies["web/tags/r7"].digests) == {"0": 1, "99": 1}
