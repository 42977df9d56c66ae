"""A node that failed, was interrupted, refused, is overdue or unresponsive is never unchanged."""

from collections.abc import Mapping

import pytest

from localpuppet.base.formats.values import Json
from localpuppet.fleet.history.history_records import DAY, RunCounts, RunSummary
from localpuppet.fleet.inventory.presence import NodeRow
from localpuppet.fleet.inventory.query.tree import LATEST
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.node.runs.run import Category, Outcome, RefusalKind
from localpuppet.web.dashboard.run_table import RunRow
from tests.web.make import run_id
from tests.web.puppetdb.served import MINUTE, NOW, PlayedRuns, node, run

HOUR_AGO = NOW - 60 * MINUTE


def status(played: PlayedRuns, name: str = "a") -> Mapping[str, Json]:
    (row,) = played.ask(["from", "nodes", ["=", "certname", name]])
    return row


def newest(played: PlayedRuns) -> Mapping[str, Json]:
    """Return the report that the node's row names by its hash, as Puppetboard asks for it."""
    row = status(played)
    assert row["latest_report_status"] == "failed"
    (report,) = played.ask(["from", "reports", ["=", "hash", row["latest_report_hash"]]])
    assert report["status"] == "failed"
    assert report["end_time"] == row["report_timestamp"]
    assert played.ask(["from", "reports", ["=", LATEST, True]]) == [report]
    return report


def errors(report: Mapping[str, Json]) -> list[str]:
    logs = report["logs"]
    assert isinstance(logs, dict)
    lines = logs["data"]
    assert isinstance(lines, list)
    return [
        str(line["message"]) for line in lines if isinstance(line, dict) and line["level"] == "err"
    ]


def failed_compilation() -> RunRow:
    summary = RunSummary(
        run=run_id(HOUR_AGO - 20),
        release="web/tags/r8",
        commit="d" * 40,
        cause="timer",
        started_at=HOUR_AGO - 20,
        finished_at=HOUR_AGO,
        outcome=Outcome.FAILED,
        category=Category.NO_REPORT,
        noop=False,
        reason="Puppet wrote no report: Duplicate declaration (site/role/manifests/web.pp:3)",
    )
    return RunRow.of_summary("a", summary)


def test_a_catalog_that_does_not_compile_is_a_failed_report() -> None:
    """The situation of puppet-puppetboard 430: a resource is declared twice after a release."""
    row = node("a", outcome=Kind.COMPILE_FAILED, finished_at=HOUR_AGO)
    played = PlayedRuns([run("a", NOW - DAY), failed_compilation()], [row])
    report = newest(played)
    assert errors(report) == [
        "Puppet wrote no report: Duplicate declaration (site/role/manifests/web.pp:3)"
    ]
    assert report["configuration_version"] == "d" * 40
    counted: Json = ["extract", [["function", "count"], "status"], ["group_by", "status"]]
    assert {"status": "failed", "count": 1} in played.ask(["from", "reports", counted])


def test_recent_reports_of_an_old_catalog_are_failed() -> None:
    """The situation of puppetboard 1402: each run has an error, so the catalog grows old.

    Puppet applied its cached catalog and called the node unchanged.
    """
    times = [NOW - number * 30 * MINUTE for number in range(4)]
    runs = [run("a", at, Kind.COMPILE_FAILED, reason="no such class") for at in times]
    played = PlayedRuns([run("a", NOW - DAY), *runs], [node("a", outcome=Kind.COMPILE_FAILED)])
    report = newest(played)
    assert errors(report) == ["no such class"]
    assert report["cached_catalog_status"] == "not_used"


@pytest.mark.parametrize("outcome", [one for one in Kind if one.bad or one is Kind.CANCELLED])
def test_a_run_that_did_not_end_well_is_failed_without_changes(outcome: Kind) -> None:
    played = PlayedRuns([run("a", HOUR_AGO, outcome)], [node("a", outcome=outcome)])
    assert errors(newest(played)) == [f"the run ended as: {outcome}"]


def test_a_refused_apply_has_a_report_with_the_reason() -> None:
    summary = RunSummary(
        run=run_id(HOUR_AGO - 3 * DAY),
        release="web/tags/r8",
        cause="timer",
        started_at=HOUR_AGO - 3 * DAY,
        finished_at=HOUR_AGO,
        refusal=RefusalKind.INTEGRITY,
        times=9,
        noop=False,
        reason="the release failed a check of its integrity",
    )
    refused = node("a", outcome=Kind.REFUSED, finished_at=HOUR_AGO, reason="other words")
    played = PlayedRuns([run("a", HOUR_AGO - MINUTE)], [refused])
    # The presence is known, and the summary is still on its way.
    assert errors(newest(played)) == ["other words"]
    played.add(RunRow.of_summary("a", summary))
    report = newest(played)
    assert errors(report) == ["the release failed a check of its integrity"]
    assert report["start_time"] == "2026-11-15T10:06:40.000Z"
    played.add(run("a", NOW))
    assert status(played)["latest_report_status"] == "unchanged"


def test_a_failed_run_has_its_report_before_the_memory_has_it() -> None:
    failed = run("a", HOUR_AGO, Kind.FAILED, reason="disk full")
    row = node("a", outcome=Kind.FAILED, finished_at=HOUR_AGO, run=failed.run, reason="disk full")
    played = PlayedRuns([run("a", HOUR_AGO - DAY)], [row])
    early = newest(played)
    assert errors(early) == ["disk full"]
    found = played.records.find(str(early["hash"]))
    assert found is not None
    assert not found.is_missing  # the node has its log
    played.add(failed)
    assert newest(played)["hash"] == early["hash"]


OVERDUE = node("a", run_interval=600.0, finished_at=NOW - DAY)
UNRESPONSIVE = node("a", state="unresponsive", received_at=NOW - 30 * MINUTE)
REJECTED = node("a", state="not trusted", outcome=Kind.NONE, reason="unknown signer")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (OVERDUE, "the node is overdue: its last run ended at 2026-11-17T11:06:40.000Z"),
        (UNRESPONSIVE, "the node is unresponsive: its agent was last online at"),
        (REJECTED, "the node's status is not trusted: unknown signer"),
    ],
)
def test_a_node_without_a_report_has_a_failed_one_until_it_runs(row: NodeRow, reason: str) -> None:
    last = run("a", NOW - DAY)
    played = PlayedRuns([last], [row])
    report = newest(played)
    (line,) = errors(report)
    assert line.startswith(reason)
    assert newest(played) == report
    # Its report is in lists and numbers, and the run before is no longer the newest one.
    page = played.ask(["from", "reports", ["order_by", [["end_time", "desc"]]], ["limit", 9]])
    assert [one["status"] for one in page] == ["failed", "unchanged"]
    older: Json = ["extract", ["status"], ["=", LATEST, False]]
    assert played.ask(["from", "reports", older]) == [{"status": "unchanged"}]
    played.add(run("a", NOW))
    played.put(node("a", run_interval=600.0, finished_at=NOW))
    assert status(played)["latest_report_status"] == "unchanged"
    assert played.ask(["from", "reports", ["=", "hash", report["hash"]]]) == []


def test_a_node_without_any_report_has_none() -> None:
    played = PlayedRuns([], [node("a", state="unresponsive", received_at=None, outcome=Kind.NONE)])
    assert played.ask(["from", "nodes"]) == []
    assert played.ask(["from", "reports"]) == []


def test_a_node_on_time_keeps_the_status_of_its_run() -> None:
    noop = run("a", HOUR_AGO, Kind.NOOP_PENDING, noop=True, counts=RunCounts(out_of_sync=2))
    played = PlayedRuns([noop], [node("a", outcome=Kind.NOOP_PENDING, finished_at=HOUR_AGO)])
    row = status(played)
    assert row["latest_report_status"] == "unchanged"
    assert row["latest_report_noop"] is True
    assert row["latest_report_noop_pending"] is True


def test_a_refusal_because_of_a_hold_is_no_report() -> None:
    """The lists of nodes do not count it either: the last run stays the last one."""
    held = RunSummary(
        run=run_id(NOW - MINUTE),
        release="web/tags/r8",
        cause="timer",
        started_at=NOW - MINUTE,
        finished_at=NOW - MINUTE,
        refusal=RefusalKind.ON_HOLD,
        noop=False,
        reason="on hold",
    )
    played = PlayedRuns([run("a", HOUR_AGO), RunRow.of_summary("a", held)], [node("a")])
    assert status(played)["latest_report_status"] == "unchanged"
    counted: Json = ["extract", [["function", "count"], "status"], ["group_by", "status"]]
    assert played.ask(["from", "reports", counted]) == [{"count": 1, "status": "unchanged"}]
    assert len(played.ask(["from", "reports"])) == 1
    # Nor does it hide the report that the node should have sent since.
    played.put(node("a", state="unresponsive", received_at=NOW - 30 * MINUTE))
    found = played.records.find(str(newest(played)["hash"]))
    assert found is not None
    assert found.is_missing
