"""The predicted changes of a noop run: which runs have them, and the secret of the node."""

import json
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.formats.names import RunId
from localpuppet.node.puppet.changes import PredictedChanges
from localpuppet.node.runs.run import Outcome, RunState
from localpuppet.node.runs.run_records import Records
from localpuppet.node.runs.run_replies import FILE, NoopReporter
from tests.doubles.ports import FakeProcesses
from tests.node import make

RUN = make.RUN
SALT = "5a" * 16
EVENT = {"property": "mode", "status": "noop", "previous_value": "0644", "desired_value": "0600"}
RESOURCE = {"resource_type": "File", "title": "/etc/motd", "events": [EVENT]}


@pytest.fixture
def records(tmp_path: Path) -> Records:
    return Records(tmp_path / "runs", FakeProcesses())


def ended(records: Records, **more: Any) -> None:
    """Write the record of a noop run with one predicted change."""
    directory = records.directory / RUN
    directory.mkdir(parents=True, exist_ok=True)
    fields: dict[str, Any] = {"outcome": Outcome.UNCHANGED, "noop": True, **more}
    status = make.status(id=RunId(RUN), state=RunState.FINISHED, **fields)
    (directory / "status.json").write_text(json.dumps(status.to_dict()))
    report = {"resource_statuses": {"File[/etc/motd]": RESOURCE}}
    (directory / "report.json").write_text(json.dumps(report))


def test_a_node_keeps_its_secret_and_marks_are_equal_for_equal_salts(
    records: Records, tmp_path: Path
) -> None:
    ended(records)
    reply = NoopReporter(tmp_path, records)(RUN, SALT)
    found = PredictedChanges.read(reply)
    assert found.release == "web/tags/r1"
    assert [str(one) for one in found.changes] == ["File[/etc/motd] mode"]
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    assert NoopReporter(tmp_path, records)(RUN, SALT) == reply, "a second reporter of the same node"
    assert NoopReporter(tmp_path, records)(RUN, "5b" * 16) != reply
    (tmp_path / FILE).unlink()
    assert NoopReporter(tmp_path, records)(RUN, SALT) != reply


def test_only_a_successful_noop_run_with_a_valid_report_has_predicted_changes(
    records: Records, tmp_path: Path
) -> None:
    predict = NoopReporter(tmp_path, records)
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
