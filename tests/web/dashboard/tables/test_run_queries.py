"""Runs of many nodes with their resources, and what drifts."""

import sqlite3
from collections.abc import Iterator
from dataclasses import replace

import pytest

from localpuppet.fleet.history.day import DAY, day_of
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.node.puppet.resources import ResourceResult
from localpuppet.web.dashboard import activity
from localpuppet.web.dashboard.list_query import DRIFT, RUNS, ListQuery
from localpuppet.web.dashboard.run_row import RunRow
from localpuppet.web.dashboard.tables import run_queries, run_table
from localpuppet.web.dashboard.tables.run_queries import RunFilter
from localpuppet.web.dashboard.tables.run_table import RunTableWriter
from tests.fleet.make import a_part
from tests.web.dashboard.site import run_id

NOW = 1_795_000_000.0
MOTD = a_part(
    "File[/etc/motd]",
    file="profile/manifests/motd.pp",
    line=3,
    status=ResourceResult.CHANGED,
)


def ended(at: float, node: str = "a", **more: object) -> RunRow:
    run = RunRow(
        node=node, run=run_id(at), at=at, outcome=Kind.CHANGED, release="web/tags/r1", reason=""
    )
    return replace(run, **{"seconds": 5, **more})  # type: ignore[arg-type]


@pytest.fixture
def table() -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(":memory:")
    connection.executescript(run_table.TABLES)
    yield connection
    connection.close()


def write(table: sqlite3.Connection, *runs: RunRow, most_resources: int = 9) -> None:
    writing = RunTableWriter(table, most_resources=most_resources)
    for run in runs:
        writing.add(run)


def test_a_summary_completes_a_known_run(table: sqlite3.Connection) -> None:
    whole = ended(NOW, cause="timer", resources=(MOTD,), more=2, reason="x")
    write(table, ended(NOW, seconds=None))
    write(table, whole)
    assert run_queries.of_node(table, "a", limit=9) == [whole]
    write(table, ended(NOW, seconds=None))
    write(table, whole)
    assert run_queries.of_node(table, "a", limit=9) == [whole]
    # A refused apply that is refused again has the same id.
    later = replace(whole, at=NOW + 60, seconds=65)
    write(table, later)
    assert run_queries.of_node(table, "a", limit=9) == [later]


def test_the_resources_of_a_node_and_day_are_limited(table: sqlite3.Connection) -> None:
    many = tuple(replace(MOTD, type="File", title=f"/{number}") for number in range(6))
    write(
        table,
        ended(NOW, resources=many),
        ended(NOW + 1, resources=many),
        ended(NOW, "b", resources=many),
    )
    last, first = run_queries.of_node(table, "a", limit=9)
    assert (len(first.resources), first.more, len(last.resources), last.more) == (6, 0, 3, 3)
    assert len(run_queries.of_node(table, "b", limit=1)[0].resources) == 6


def test_runs_of_many_nodes_are_filtered_by_end_result_and_node(table: sqlite3.Connection) -> None:
    runs = [ended(NOW - number * 3600, f"n{number % 3}") for number in range(60)]
    failed = [ended(NOW - 7200 - number, "n9", outcome=Kind.FAILED) for number in range(3)]
    # It was requested before midnight, and ended after it.
    midnight = day_of(NOW) * DAY
    late = replace(ended(midnight - 10, "z"), at=midnight + 30.0)
    write(table, *runs, *failed, late)

    def found(since: float = 0, until: float = NOW + 1, **more: object) -> list[RunRow]:
        asked = RunFilter(
            since=since,
            until=until,
            kinds=more.get("kinds", tuple(Kind)),  # type: ignore[arg-type]
            nodes=more.get("nodes"),  # type: ignore[arg-type]
        )
        by_end = ListQuery(form=RUNS, sort="at", down=True).whole
        return list(run_queries.listed(table, by_end, asked, limit=100).rows)

    everything = found()
    assert len(everything) == 64
    assert everything[:2] == runs[:2]
    assert found(kinds=(Kind.FAILED,)) == failed
    assert found(kinds=(Kind.CANCELLED,)) == []
    assert found(nodes=("n1",), since=NOW - 4 * 3600) == [runs[1], runs[4]]
    assert found(nodes=()) == []
    assert found(since=midnight, until=midnight + 60) == [late]
    assert found(until=NOW) == everything[1:]


def test_the_last_good_run_and_the_first_run_of_a_release_are_found(
    table: sqlite3.Connection,
) -> None:
    good, bad = ended(NOW - 9 * DAY), ended(NOW, outcome=Kind.FAILED, release="web/tags/r2")
    write(table, bad, ended(NOW - 60, outcome=Kind.NOOP_CLEAN), good, ended(NOW - 10 * DAY))
    kinds = run_table.GOOD_KINDS
    assert run_queries.of_node(table, "a", limit=1, kinds=kinds) == [good]
    assert run_queries.of_node(table, "b", limit=1, kinds=kinds) == []
    assert run_queries.first_of_release(table, "web/tags/r2") == NOW
    assert run_queries.first_of_release(table, "web/tags/r1") == NOW - 10 * DAY
    assert run_queries.first_of_release(table, "web/tags/r3") is None


def test_the_first_failed_run_after_a_good_one_is_found(table: sqlite3.Connection) -> None:
    good = ended(NOW - 9 * DAY)
    first = ended(NOW - 8 * DAY, outcome=Kind.FAILED, release="web/tags/r2")
    later = ended(NOW, outcome=Kind.FAILED, release="web/tags/r3")
    other = ended(NOW - 8.5 * DAY, "b", outcome=Kind.FAILED)
    earlier = ended(NOW - 9 * DAY - 60, outcome=Kind.FAILED)
    noop = ended(NOW - 9 * DAY + 60, outcome=Kind.NOOP_CLEAN)
    write(table, later, first, good, other, earlier, noop)
    assert run_queries.first_bad(table, [good]) == {"a": first}
    assert run_queries.first_bad(table, [later]) == {}


def test_a_node_has_counts_of_runs_by_day(table: sqlite3.Connection) -> None:
    today = day_of(NOW)
    write(
        table,
        ended(NOW),
        ended(NOW - 5, outcome=Kind.FAILED),
        ended(NOW - DAY),
        ended(NOW - 3 * DAY),
        ended(NOW, "b"),
    )
    assert run_queries.days_of(table, "a", [today - 1, today]) == {
        (today, Kind.CHANGED): 1,
        (today, Kind.FAILED): 1,
        (today - 1, Kind.CHANGED): 1,
    }


def test_a_change_drifts_if_the_release_was_already_applied(table: sqlite3.Connection) -> None:
    ssh = replace(MOTD, type="Service", title="ssh", file="", line=None)
    corrective = replace(ssh, corrective_change=True)
    write(
        table,
        ended(NOW - 2 * DAY, resources=(MOTD,)),  # the first run of the release
        ended(NOW - DAY, outcome=Kind.UNCHANGED),
        ended(NOW - 60, resources=(MOTD, replace(ssh, status=ResourceResult.SKIPPED))),
        ended(NOW - 50, resources=(MOTD,)),
        ended(NOW - 40, release="web/tags/r2", resources=(MOTD,)),
        ended(NOW - 30, release="web/tags/r3", outcome=Kind.FAILED, resources=(MOTD,)),
        ended(NOW - 20, release="web/tags/r3", resources=(MOTD,)),
        ended(NOW - 10, "b", resources=(corrective,)),
    )
    asked, today = ListQuery(form=DRIFT, sort="count", down=True), day_of(NOW) + activity.DRIFT_DAYS
    found = activity.listed(table, asked.whole, None, today=today - 1).rows
    assert [(one.node, one.resource, one.place, one.count) for one in found] == [
        ("a", MOTD.resource, MOTD.place, 2),
        ("b", "Service[ssh]", "", 1),
    ]
    assert (found[0].last, found[0].run) == (NOW - 50, run_id(NOW - 50))
    (a, b), (motd, service) = activity.drift_groups(found)
    assert (motd.name, motd.place, motd.count, motd.others) == (MOTD.resource, MOTD.place, 2, ["a"])
    assert (a.name, a.count, a.others, a.newest) == ("a", 2, [MOTD.resource], found[0])
    assert (service.others, b.others) == (["b"], ["Service[ssh]"])
    assert len(activity.listed(table, asked.whole, ["b"], today=today - 1).rows) == 1
    assert activity.listed(table, asked.whole, None, today=today + 1).rows == []


def test_resources_go_with_their_runs(table: sqlite3.Connection) -> None:
    write(table, *(ended(NOW + second, resources=(MOTD,)) for second in range(3)))
    assert run_table.take_away(table, most=2) == 2
    assert table.execute("SELECT count(*) FROM resources").fetchone() == (1,)
    run_table.take_away(table, most=2)
    assert table.execute("SELECT count(*) FROM texts").fetchone() == (0,)
