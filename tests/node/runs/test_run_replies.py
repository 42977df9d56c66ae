"""The report and the log of a run, in the form that may leave the node."""

import io
import json
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.formats.converter import from_record, to_record
from localpuppet.base.formats.names import RunId
from localpuppet.node.puppet.changes import Diffs, PredictedChanges
from localpuppet.node.runs.run import Outcome, RunState, Status
from localpuppet.node.runs.run_records import Records, RunDirectory
from localpuppet.node.runs.run_replies import (
    FILE,
    MAX_LINE,
    MAX_ORIGINS,
    MAX_REPORT,
    MAX_TOLD,
    LogEnd,
    LogExcerpt,
    RunReport,
    foreseen_reply,
    log_reply,
    report_reply,
    weight,
)
from tests.doubles.ports import FakeProcesses
from tests.node import make

# Bytes of names and counts in addition to lines and events.
BESIDE = 32 * 1024
RUN = make.RUN


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    (tmp_path / RUN).mkdir()
    return RunDirectory(tmp_path / RUN)


def status(run: RunDirectory) -> Status:
    return make.status(Outcome.FAILED, id=run.id, reason="Error: password 'canary' is wrong")


def resource(ref: str, message: str = "", **more: Any) -> dict[str, Any]:
    event = {"property": "ensure", "status": "success", "message": message, "time": ""}
    return {"resource": ref, "file": "/x/init.pp", "line": 3, "events": [event], **more}


def told(run: RunDirectory) -> dict[str, Any]:
    reply: dict[str, Any] = json.loads(json.dumps(to_record(report_reply(run, status(run)))))
    assert to_record(from_record(RunReport, reply)) == to_record(report_reply(run, status(run)))
    return reply


def report(run: RunDirectory, *resources: dict[str, Any]) -> dict[str, Any]:
    run.report.write_text(
        json.dumps({"resource_statuses": {one["resource"]: one for one in resources}})
    )
    return told(run)


def test_the_reply_with_a_log_has_no_diffs(run: RunDirectory) -> None:
    assert log_reply(run, status(run))["lines"] == [], "without a log"
    source = "Notice: /Stage[main]/Main/File[/x]/content: "
    run.log.write_text(f"Notice: a\n{source}\n--- /x\n+secret\n{source}changed\nλ\n")
    assert log_reply(run, status(run)) == {
        "run": RUN,
        "state": "finished",
        "lines": ["Notice: a", source, f"{source}changed", "λ"],
        "origins": [],
        "before": 0,
        "left_out": 2,
    }


def test_lines_have_the_origin_that_the_report_says(run: RunDirectory) -> None:
    """The last lines first, if there are too many; a report that is no report is no reason."""
    notice, place = {"source": "Puppet", "message": "a"}, {"time": "t", "file": "/x.pp", "line": 3}
    error = {"source": "/Stage[main]/Exec[b]", "message": "failed\nsecond", **place}
    run.log.write_text("Notice: a\nError: /Stage[main]/Exec[b]: failed\nsecond\n")
    run.report.write_text(json.dumps({"logs": [notice, error]}))
    origins = [{"time": None, "file": None, "line": None}, place, None]
    assert log_reply(run, status(run))["origins"] == origins
    run.log.write_text("Notice: a\n" * 5000)
    run.report.write_text(json.dumps({"logs": [{**notice, **place}] * 5000}))
    many = log_reply(run, status(run))["origins"]
    assert isinstance(many, list)
    assert (many[0], many[-1]) == (None, place)
    assert len(json.dumps(many)) < 2 * MAX_ORIGINS
    for broken in (
        '{"logs": [1, {"message": []}], "x"',
        '{"logs": 5}',
        '{"logs": ["a", {}]}',
        "[]",
    ):
        run.report.write_text(broken)
        assert str(log_reply(run, status(run))["lines"]).count("Notice: a") == 5000


@pytest.mark.parametrize("line", ['"' * 100, "λ" * 100, "\x01" * 50, "x"])
def test_the_end_of_a_long_log_fits_into_a_reply(run: RunDirectory, line: str) -> None:
    """For any lines, although a character may need six bytes in JSON."""
    count = 2 * MAX_TOLD // len(line)
    run.log.write_text("\n".join(f"{number} {line}" for number in range(count)) + "\n")
    reply: Any = log_reply(run, status(run))
    assert reply["lines"][-1] == f"{count - 1} {line}"
    assert reply["before"] + len(reply["lines"]) == count
    fits(reply)
    run.log.write_text(line * (10 * MAX_TOLD // len(line)))
    one: Any = log_reply(run, status(run))
    assert [len(text) for text in one["lines"]] == [MAX_LINE + 1]


def test_the_reply_with_a_report_lists_resources_by_result(run: RunDirectory) -> None:
    reply = report(
        run,
        resource("File[/a]", "created", changed=True),
        resource("Exec[b]", "failed\n--- /x\n+secret", failed=True),
        resource("File[/c]", skipped=True),
        resource("File[/d]"),
    )
    assert [one["resource"] for one in reply["failed"]] == ["Exec[b]"]
    assert reply["failed"][0]["events"][0]["message"] == "failed"
    assert [one["resource"] for one in reply["changed"]] == ["File[/a]"]
    assert (reply["changed"][0]["file"], reply["changed"][0]["line"]) == ("/x/init.pp", 3)
    assert [one["resource"] for one in reply["skipped"]] == ["File[/c]"]
    assert (reply["report"], reply["left_out"]) == (True, 0)
    assert "canary" not in json.dumps(reply), "the reason stays on the node"


def test_failed_resources_of_a_large_report_are_kept(run: RunDirectory) -> None:
    many = [resource(f"File[/{n}]", "x" * 500, changed=True) for n in range(2000)]
    reply = report(run, *many, resource("Exec[b]", "failed", failed=True))
    assert [one["resource"] for one in reply["failed"]] == ["Exec[b]"]
    assert reply["left_out"] == 2000 - len(reply["changed"]) > 0
    fits(reply)


def test_a_missing_report_is_a_reply_and_a_damaged_one_an_error(run: RunDirectory) -> None:
    reply = told(run)
    assert (reply["report"], reply["failed"]) == (False, [])
    run.report.write_text('{"resource_statuses": {"a": []}}')
    with pytest.raises(StateError, match="not a Puppet report"):
        report_reply(run, status(run))


def fits(reply: Any) -> None:
    """Assert the size as JSON; tests/fleet/requests/test_request.py sends a reply of this size."""
    assert len(json.dumps(reply, ensure_ascii=False).encode()) <= MAX_TOLD + BESIDE


def test_a_report_above_the_limit_is_not_read(run: RunDirectory) -> None:
    report(run, resource("File[/a]", status="changed", changed=True))
    run.report.write_bytes(run.report.read_bytes().ljust(MAX_REPORT))
    assert told(run)["report"] is True
    run.report.write_bytes(run.report.read_bytes() + b" ")
    with pytest.raises(StateError, match="is too large to send"):
        report_reply(run, status(run))


SOURCE = "Notice: /Stage[main]/Main/File[/x]/content: "
LINES = [
    *(SOURCE, SOURCE.rstrip(), f"{SOURCE}content changed", "--- /x", "+secret", ""),
    *("Notice: done", "reading:", "λ" * 30, "x" * 90, '"quoted"', "a\rb", f"{SOURCE}\r"),
]


def line_by_line(data: bytes, *, most: int, longest: int) -> LogExcerpt:
    text = data.decode("utf-8", "backslashreplace")
    whole = [line.rstrip("\n") for line in io.StringIO(text, newline=None)]
    kept = list(Diffs().without(whole))
    lines: list[str] = []
    room = most
    for line in reversed([one if len(one) <= longest else f"{one[:longest]}…" for one in kept]):
        room -= weight(line)
        if room < 0:
            break
        lines.insert(0, line)
    return LogExcerpt(lines=lines, before=len(kept) - len(lines), left_out=len(whole) - len(kept))


@pytest.mark.parametrize("piece", [1, 7, 64, 300, 10_000])
def test_the_end_of_a_log_does_not_depend_on_the_size_of_pieces(piece: int) -> None:
    chance = random.Random(piece)  # noqa: S311 - the same logs each time
    for _ in range(60):
        data = "\n".join(chance.choices(LINES, k=chance.randrange(80))).encode()
        data += chance.choice([b"", b"\n", b"\xff\n", b"\n\n"])
        sizes = {"most": chance.choice([50, 400, 5000]), "longest": chance.choice([20, 80])}
        end = LogEnd(**sizes, piece=piece).read(io.BytesIO(data))
        assert end == line_by_line(data, **sizes), (data, sizes)


class Log(io.BytesIO):
    looked = 0

    def readline(self, size: int | None = -1, /) -> bytes:
        self.looked += 1
        return super().readline(size)


def test_a_long_log_is_not_split_into_lines() -> None:
    """Lines far before the end are counted in pieces."""
    log = Log(b"Notice: some message\n" * 100_000)
    end = LogEnd(most=1000, longest=200).read(log)
    assert (len(end.lines) + end.before, end.left_out) == (100_000, 0)
    assert log.looked < 20


SALT = "5a" * 16
EVENT = {"property": "mode", "status": "noop", "previous_value": "0644", "desired_value": "0600"}
RESOURCE = {"resource_type": "File", "title": "/etc/motd", "events": [EVENT]}


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(tmp_path / "runs", FakeProcesses())


def ended(records: Records, **more: Any) -> None:
    directory = records.directory / RUN
    directory.mkdir(parents=True, exist_ok=True)
    fields: dict[str, Any] = {"outcome": Outcome.UNCHANGED, "noop": True, **more}
    status = make.status(id=RunId(RUN), state=RunState.FINISHED, **fields)
    (directory / "status.json").write_text(json.dumps(status.to_dict()))
    report = {"resource_statuses": {"File[/etc/motd]": RESOURCE}}
    (directory / "report.json").write_text(json.dumps(report))


def test_marks_are_equal_for_an_equal_secret_and_salt(records: Records, tmp_path: Path) -> None:
    ended(records)
    reply = foreseen_reply(tmp_path, records, RUN, SALT)
    found = PredictedChanges.read(reply)
    assert found.release == "web/tags/r1"
    assert [str(one) for one in found.changes] == ["File[/etc/motd] mode"]
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    assert foreseen_reply(tmp_path, records, RUN, SALT) == reply, (
        "a second reporter of the same node"
    )
    assert foreseen_reply(tmp_path, records, RUN, "5b" * 16) != reply
    (tmp_path / FILE).unlink()
    assert foreseen_reply(tmp_path, records, RUN, SALT) != reply


def test_only_a_successful_noop_run_has_predictions(records: Records, tmp_path: Path) -> None:
    predict = partial(foreseen_reply, tmp_path, records)
    for more in ({"noop": False}, {"outcome": Outcome.FAILED}):
        ended(records, **more)
        with pytest.raises(InvalidInputError, match="is not a successful noop run"):
            predict(RUN, SALT)
    ended(records)
    (records.directory / RUN / "report.json").write_text('{"resource_statuses": {"x": 1}}')
    with pytest.raises(StateError, match="not a Puppet report"):
        predict(RUN, SALT)
    (records.directory / RUN / "report.json").unlink()
    with pytest.raises(StateError, match="has no report"):
        predict(RUN, SALT)
    ended(records)
    (tmp_path / FILE).write_bytes(b"short")
    with pytest.raises(StateError, match="is damaged"):
        predict(RUN, SALT)
