"""The record of what a run collected."""

from pathlib import Path

from localpuppet.fleet.exports.recording import CollectedResource, CollectorRecord, note_collected
from localpuppet.node.runs.run_records import RunDirectory
from localpuppet.node.runs.run_replies import ReportedQuery, run_context

AT = "2026-11-22T11:00:00.000000Z"


def test_a_report_names_the_nodes_from_which_a_run_collected(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path / "20261120T140000.000000Z-abcd")
    run.path.mkdir()
    resource = CollectedResource(node="db01", resource="Host[a]", how="as-is", dropped=())
    collector = CollectorRecord(type="Host", filter=None, at=AT, age=2.0, resources=(resource,))
    note_collected(run, collector)
    assert run_context(run).collected == (
        ReportedQuery(text="Host <<| |>>", count=1, names=("db01",), age=2.0, reason=""),
    )
