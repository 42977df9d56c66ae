"""What a run did and said, as it may leave the node."""

import json
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import StateError
from localpuppet.node.runs.records import RunDirectory
from localpuppet.node.runs.run import Outcome, RunState, Status
from localpuppet.node.runs.run_replies import (
    MAX_LINE,
    MAX_REPORT,
    MAX_TOLD,
    log_reply,
    report_reply,
)

# Bytes of names and counts beside lines and events.
BESIDE = 32 * 1024
RUN = "20261120T140000.000000Z-abcd"


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    (tmp_path / RUN).mkdir()
    return RunDirectory(tmp_path / RUN)


def status(run: RunDirectory, **more: Any) -> Status:
    return Status(
        id=run.id,
        state=RunState.FINISHED,
        outcome=Outcome.FAILED,
        release="app/tags/r1",
        started_at="2026-11-20T14:00:00Z",
        **{"reason": "Error: password 'canary' is wrong", **more},
    )


def resource(ref: str, message: str = "", **more: Any) -> dict[str, Any]:
    event = {"property": "ensure", "status": "success", "message": message, "time": ""}
    return {"resource": ref, "file": "/x/init.pp", "line": 3, "events": [event], **more}


def report(run: RunDirectory, *resources: dict[str, Any]) -> dict[str, Any]:
    run.report.write_text(
        json.dumps({"resource_statuses": {one["resource"]: one for one in resources}})
    )
    told: dict[str, Any] = report_reply(run, status(run))
    return told


def test_a_log_is_told_without_diffs(run: RunDirectory) -> None:
    source = "Notice: /Stage[main]/Main/File[/x]/content: "
    run.log.write_text(f"Notice: a\n{source}\n--- /x\n+secret\n{source}changed\nλ\n")
    assert log_reply(run, status(run)) == {
        "run": RUN,
        "state": "finished",
        "lines": ["Notice: a", source, f"{source}changed", "λ"],
        "before": 0,
        "left_out": 2,
    }


def test_a_log_that_is_not_there_yet(run: RunDirectory) -> None:
    assert log_reply(run, status(run))["lines"] == []


@pytest.mark.parametrize("line", ['"' * 100, "λ" * 100, "\x01" * 50, "x"])
def test_of_a_long_log_the_end_is_told_and_fits_into_a_reply(run: RunDirectory, line: str) -> None:
    """Whatever the lines are: as JSON a character may take six bytes."""
    count = 2 * MAX_TOLD // len(line)
    run.log.write_text("\n".join(f"{number} {line}" for number in range(count)) + "\n")
    told: Any = log_reply(run, status(run))
    assert told["lines"][-1] == f"{count - 1} {line}"
    assert told["before"] + len(told["lines"]) == count
    fits(told)


def test_a_line_without_end_is_cut(run: RunDirectory) -> None:
    run.log.write_text("x" * 10 * MAX_TOLD)
    told: Any = log_reply(run, status(run))
    assert [len(line) for line in told["lines"]] == [MAX_LINE + 1]


def test_a_report_is_told_by_what_became_of_resources(run: RunDirectory) -> None:
    told = report(
        run,
        resource("File[/a]", "created", changed=True),
        resource("Exec[b]", "failed\n--- /x\n+secret", failed=True),
        resource("File[/c]", skipped=True),
        resource("File[/d]"),
    )
    assert [one["resource"] for one in told["failed"]] == ["Exec[b]"]
    assert told["failed"][0]["events"][0]["message"] == "failed"
    assert [one["resource"] for one in told["changed"]] == ["File[/a]"]
    assert (told["changed"][0]["file"], told["changed"][0]["line"]) == ("/x/init.pp", 3)
    assert [one["resource"] for one in told["skipped"]] == ["File[/c]"]
    assert (told["report"], told["left_out"]) == (True, 0)
    assert "canary" not in json.dumps(told), "the reason that stays on the node"


def test_of_a_large_report_what_failed_comes_first(run: RunDirectory) -> None:
    many = [resource(f"File[/{n}]", "x" * 500, changed=True) for n in range(2000)]
    told = report(run, *many, resource("Exec[b]", "failed", failed=True))
    assert [one["resource"] for one in told["failed"]] == ["Exec[b]"]
    assert told["left_out"] == 2000 - len(told["changed"]) > 0
    fits(told)


def test_no_report_and_a_damaged_one(run: RunDirectory) -> None:
    told = report_reply(run, status(run))
    assert (told["report"], told["failed"]) == (False, [])
    run.report.write_text('{"resource_statuses": {"a": []}}')
    with pytest.raises(StateError, match="not a Puppet report"):
        report_reply(run, status(run))


def fits(told: Any) -> None:
    """Check the size as JSON; tests/fleet/requests/test_reply.py replies with as much."""
    assert len(json.dumps(told, ensure_ascii=False).encode()) <= MAX_TOLD + BESIDE


def test_a_report_that_would_fill_the_agents_memory_is_not_read(run: RunDirectory) -> None:
    report(run, resource("File[/a]", status="changed", changed=True))
    run.report.write_bytes(run.report.read_bytes().ljust(MAX_REPORT))
    assert report_reply(run, status(run))["report"] is True
    run.report.write_bytes(run.report.read_bytes() + b" ")
    with pytest.raises(StateError, match="is too large to send"):
        report_reply(run, status(run))
