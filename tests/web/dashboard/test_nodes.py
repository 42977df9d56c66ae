"""Lists, counts and failures of nodes are those of a look at each node, after any changes."""

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from localpuppet.fleet.inventory.presence import (
    LATE,
    NODE_ORDERS,
    ON_HOLD,
    ROLLED_BACK,
    STATES,
    HoldView,
    NodeRow,
    is_older,
)
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.web.dashboard import nodes
from localpuppet.web.dashboard.list_query import (
    CONCERNS,
    FAILURES,
    NODES,
    PAGE,
    ListPage,
    ListQuery,
)
from localpuppet.web.dashboard.memory import _TABLES
from localpuppet.web.dashboard.nodes import (
    MOST,
    FailureGroup,
    NodeTable,
    of_name,
    overview,
    tallies,
)
from tests.fleet.make import a_row, an_end
from tests.web.make import run_id

NOW = 1_795_000_000.0
APP = "web/tags/r7"
ROLLOUT = "choria=alice/rollout/20261122T110000Z-00aa"
NODE = st.sampled_from([f"n{number}" for number in range(8)])

ROWS = st.builds(
    a_row,
    node=NODE,
    state=st.sampled_from(STATES),
    outcome=st.sampled_from(Kind),
    error=st.sampled_from(["", "A", "B"]),
    release=st.sampled_from(["", APP, "db/tags/r1", "web/trunk"]),
    release_digest=st.sampled_from(["", "a" * 64, "b" * 64]),
    input_release=st.sampled_from(["", APP]),
    failing_since=st.sampled_from([None, NOW - 100_000]),
    finished_at=st.sampled_from([NOW - 90_000, NOW - 60, NOW]),
    run_interval=st.sampled_from([None, 60.0]),
    holds=st.sampled_from([(), (HoldView(owner="o", reason="r", until=NOW + 9),)]),
    received_at=st.sampled_from([None, NOW]),
)


# Nodes that join and change; a name alone is that of a forgotten node.
CHANGES = st.lists(ROWS | NODE, max_size=40)
NAMES = st.none() | st.frozensets(NODE)


@contextmanager
def table_of(changes: Iterable[NodeRow | str]) -> Iterator[NodeTable]:
    """Lend a table of nodes after some changes."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript(_TABLES)
        table = NodeTable(connection, NOW)
        for one in changes:
            if isinstance(one, NodeRow):
                table.put(one, of_name(connection, one.node))
            elif of_name(connection, one) is not None:
                table.forget(one)
        yield table


def rows_of(changes: Iterable[NodeRow | str]) -> list[NodeRow]:
    """Return which nodes there are after changes, by name."""
    rows: dict[str, NodeRow] = {}
    for one in changes:
        if isinstance(one, NodeRow):
            before = rows.get(one.node)
            same = before is not None and replace(before, received_at=one.received_at) == one
            rows[one.node] = before if same and before is not None else one
        else:
            rows.pop(one, None)
    return sorted(rows.values(), key=lambda row: row.node)


def wrong(rows: Iterable[NodeRow]) -> Mapping[str, str]:
    """Return the nodes with a wrong release, each with the usual digest."""
    digests: dict[str, Counter[str]] = {}
    agreeing = [
        row
        for row in rows
        if "/tags/" in row.release and row.release_digest and row.input_release in ("", row.release)
    ]
    for row in agreeing:
        digests.setdefault(row.release, Counter())[row.release_digest] += 1
    usual = {}
    for release, counts in digests.items():
        most = [digest for digest, number in counts.items() if number == max(counts.values())]
        usual[release] = most[0] if len(most) == 1 else ""
    return {
        row.node: usual[row.release] for row in agreeing if row.release_digest != usual[row.release]
    }


def is_(concern: str, row: NodeRow, odd: Mapping[str, str]) -> bool:
    if concern == LATE:
        return row.late(NOW)
    if concern == "wrong release":
        return row.node in odd
    if concern == "rolled back":
        return row.input_release not in ("", row.release)
    return row.state == concern or (concern == ON_HOLD and bool(row.holds))


@given(CHANGES, NAMES)
def test_after_any_changes_the_totals_are_those_of_the_nodes(
    changes: list[NodeRow | str], names: frozenset[str] | None
) -> None:
    everyone = rows_of(changes)
    rows = [row for row in everyone if names is None or row.node in names]
    odd = wrong(everyone)
    with table_of(changes) as table:
        assert table.count == len(everyone)
        found = overview(table.connection, names, now=NOW)
        by_release = tallies(table.connection, names)
        asked = ListQuery.parse({}, FAILURES)
        causes = nodes.failure_groups(table.connection, asked, names)
        small = nodes.brief(table.connection, now=NOW)
    assert dict(found.kinds) == Counter(row.outcome for row in rows)
    assert found.total == len(rows)
    assert {word: found.concerns.get(word, 0) for word in CONCERNS} == {
        word: sum(is_(word, row, odd) for row in rows) for word in CONCERNS
    }
    for word, some in found.attention.items():
        wanted = [row.node for row in rows if is_(word, row, odd)]
        held = [row.node for row in rows if row.is_held]
        assert sorted(row.node for row in some) == (held if word == ON_HOLD else wanted), word
    assert {*found.attention} == {word for word in found.concerns if found.concerns[word]} - {
        *("idle", "applying")
    }
    ran = [row for row in rows if row.last is not None]
    assert {release: tally.nodes for release, tally in by_release.items()} == {
        release: [row.node for row in ran if row.release == release]
        for release in {row.release for row in ran}
    }
    for release, tally in by_release.items():
        some = [row for row in ran if row.release == release]
        assert dict(tally.kinds) == Counter(row.outcome for row in some)
        digests = Counter(row.release_digest for row in some if row.release_digest)
        assert dict(tally.digests) == digests
        assert tally.wrong_release == sum(row.node in odd for row in some)
        assert tally.last == max(row.finished_at or 0 for row in some)
    bad = [row for row in rows if row.failure_cause]
    assert {one.failure_cause: [*one.nodes] for one in causes.rows} == {
        cause: [row.node for row in bad if row.failure_cause == cause]
        for cause in {row.failure_cause for row in bad}
    }
    assert {(one.node, one.severity, one.outcome) for one in small} == {
        (row.node, row.severity(NOW), row.outcome) for row in everyone
    }


@given(
    CHANGES,
    st.sampled_from([*NODE_ORDERS]),
    st.booleans(),
    st.fixed_dictionaries(
        {},
        optional={
            "outcome": st.sampled_from(Kind),
            "is_": st.sampled_from(CONCERNS),
            "release": st.just(APP),
            "older": st.sampled_from(["r8", APP, "db/tags/r10"]),
            "name": st.sampled_from(["n", "1"]),
        },
    ),
    NAMES,
)
def test_lists_equal_those_of_a_look_at_each_node(
    changes: list[NodeRow | str],
    sort: str,
    down: bool,
    filters: dict[str, Any],
    names: frozenset[str] | None,
) -> None:
    asked = ListQuery(form=NODES, sort=f"{'-' * down}{sort}", **filters)
    all_ = rows_of(changes)
    odd = wrong(all_)
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
        and (not asked.older or (row.last is not None and is_older(row.release, asked.older)))
        and (not asked.is_ or is_(asked.is_, row, odd))
    ]
    with table_of(changes) as table:
        page = nodes.listed(table.connection, asked, names, now=NOW)
    assert (page.rows, page.total) == (expected, len(expected))


def test_only_a_change_that_lists_show_is_written() -> None:
    row = a_row("a", state="idle", outcome=Kind.CHANGED, finished_at=NOW, received_at=NOW)
    with table_of([row]) as table:
        table.changed.clear()
        table.put(replace(row, received_at=NOW + 9), row)
        assert not table.changed, "only the time of the message is new"
        table.put(replace(row, last=an_end(NOW + 9)), row)
        assert table.changed == {"a"}


def test_a_page_has_a_fixed_number_of_rows_and_the_page_after_the_last_is_empty() -> None:
    with table_of(a_row(f"n{number:03}") for number in range(PAGE + 1)) as table:
        first, second, third = (
            nodes.listed(table.connection, ListQuery(page=number), None, now=NOW)
            for number in (1, 2, 3)
        )
    assert (len(first.rows), first.first, first.pages) == (PAGE, 1, 2)
    assert ([row.node for row in second.rows], second.first) == ([f"n{PAGE}"], PAGE + 1)
    assert (third.rows, third.first, third.total) == ([], 0, PAGE + 1)
    assert ListPage.of([], 1).pages == 1


def test_the_overview_sorts_holds_by_their_end_and_tells_persons_from_rollouts() -> None:
    free = HoldView(owner="alice", reason="x", until=NOW + 60)
    forever = HoldView(owner="bob", reason="x", until=None)
    step = HoldView(owner=ROLLOUT, reason="x", until=NOW + 9)
    rows = [
        a_row("b", state="on hold", holds=(forever,)),
        a_row("e", state="applying", holds=(free, step)),
        a_row("r", state="on hold", holds=(step,)),
        a_row("s", state="on hold"),
    ]
    with table_of(rows) as table:
        found = overview(table.connection, None, now=NOW)
    assert [row.node for row in found.attention[ON_HOLD]] == ["e", "b", "s"]
    assert found.rollout_holds == {"20261122T110000Z-00aa": ["e", "r"]}
    with table_of(a_row(f"n{number}", holds=(forever,)) for number in range(1000)) as table:
        found = overview(table.connection, None, now=NOW)
    assert (len(found.attention[ON_HOLD]), found.concerns[ON_HOLD]) == (MOST, 1000)


def digests(*values: str, release: str = APP) -> list[NodeRow]:
    return [
        a_row(f"n{number}", release=release, release_digest=one)
        for number, one in enumerate(values)
    ]


def wrong_releases(*rows: NodeRow) -> dict[str, str]:
    with table_of(rows) as table:
        return dict(overview(table.connection, None, now=NOW).wrong_releases)


def test_the_fewer_nodes_have_a_wrong_release() -> None:
    reason = f"its {APP} is b; most nodes have a"
    assert wrong_releases(*digests("a", "b", "a", "", "a")) == {"n1": reason}
    assert set(wrong_releases(*digests("a", "b", "a", "b", "c"))) == {f"n{n}" for n in range(5)}
    assert wrong_releases(*digests("a", "b", "a", release="web/trunk")) == {}
    other = a_row("x", release="web/tags/r8", release_digest="b")
    assert wrong_releases(*digests("a"), other) == {}


def test_a_rollback_is_a_decision_and_no_wrong_release() -> None:
    back = a_row("n", release=APP, input_release="web/tags/r8", release_digest="a")
    rows = [
        replace(back, rolled_back_by="root"),
        replace(back, node="o", assigned_by="alice"),
        *digests("b"),
        a_row("m", release=APP, input_release=APP),
    ]
    with table_of(rows) as table:
        found = overview(table.connection, None, now=NOW)
    assert found.wrong_releases == {}
    assert [row.node for row in found.attention[ROLLED_BACK]] == ["n", "o"]


RUN = run_id(NOW)


def bad(node: str, error: str, **more: Any) -> NodeRow:
    fields = {"outcome": Kind.FAILED, "finished_at": NOW, "run": RUN, "place": "init.pp:3", **more}
    return a_row(node, error=error, **fields)


FAILED_ROWS = [
    *(bad(f"web{n:03}", "A", outcome=Kind.COMPILE_FAILED, finished_at=NOW - n) for n in range(300)),
    bad("db1", "B", resource="File[/srv/db1]", finished_at=NOW - 500),
    bad("db2", "B", resource="File[/srv/db2]", finished_at=NOW - 400, outcome=Kind.TIMED_OUT),
    bad("db3", "B", place="init.pp:9"),
    a_row("fine", outcome=Kind.CHANGED, finished_at=NOW),
    a_row("away"),
]


def found(said: dict[str, str], **more: Any) -> list[FailureGroup]:
    return groups_of(FAILED_ROWS, said, **more)


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
        return list(nodes.failure_groups(table.connection, asked, names).rows)


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
