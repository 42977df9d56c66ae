"""The parts of Puppet's report that localpuppet uses."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.node.puppet.command_line import CLIENT_DATA
from localpuppet.node.puppet.fault import FailureCause
from localpuppet.node.puppet.report import MAX_FACTS, PuppetReport, parse_facts, read_facts
from localpuppet.node.puppet.resources import ResourceResult, resources_of, slowest
from tests.rigs.bad_inputs import CASES

WHEN = "2026-11-20T14:03:12Z"


def raw(**more: Any) -> dict[str, Any]:
    return {"status": "changed", "time": WHEN, "metrics": {}, "resource_statuses": {}, **more}


def test_a_corrective_change_is_distinguished_from_an_intentional_one() -> None:
    assert PuppetReport.from_dict(raw(corrective_change=True)).corrective_change
    assert not PuppetReport.from_dict(raw(corrective_change=False)).corrective_change
    assert not PuppetReport.from_dict(raw()).corrective_change


def test_the_first_failed_resource_is_the_failure_cause() -> None:
    event = {"status": "failure", "message": "'/bin/x s3cret' returned 1 instead of one of [0]"}
    late = {"resource": "Exec[b]", "failed": True, "time": "2026-11-20T14:03:14Z", "events": []}
    early = {"resource": "Exec[a]", "failed": True, "time": WHEN, "events": [event]}
    fine = {"resource": "Exec[c]", "failed": False, "time": "2026-11-20T14:03:11Z"}
    report = PuppetReport.from_dict(raw(resource_statuses={"1": late, "2": early, "3": fine}))
    assert report.failure_cause == FailureCause(
        error="… returned 1 instead of one of [0]", resource="Exec[a]"
    )
    assert report.first_failed.startswith("Exec[a]: '/bin/x s3cret' returned 1")
    assert PuppetReport.from_dict(raw(resource_statuses={"3": fine})).failure_cause is None


def test_the_cause_of_a_failure_without_an_event_is_the_error_in_the_log() -> None:
    status = {"resource": "Package[shop]", "failed": True, "time": WHEN, "events": []}
    status["containment_path"] = ["Stage[main]", "Shop", "Package[shop]"]
    logs = [
        {"level": "err", "source": "Puppet", "message": "Facter: Permission denied"},
        {"level": "notice", "source": "/Stage[main]/Shop/Package[shop]", "message": "begins"},
        {"level": "err", "source": "/Stage[main]/Shop/Package[shop]", "message": "Provider dnf is"},
    ]
    report = PuppetReport.from_dict(raw(resource_statuses={"1": status}, logs=logs))
    assert report.first_failed == "Package[shop]: Provider dnf is"
    assert report.failure_cause == FailureCause(error="Provider … is", resource="Package[shop]")


@pytest.mark.parametrize("wrong", [{}, {"status": "changed"}, raw(resource_statuses=[1])])
def test_a_document_that_is_not_a_report_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        PuppetReport.from_dict(wrong)


def status(name: str, **more: Any) -> dict[str, Any]:
    plain = {"resource": f"Exec[{name}]", "time": f"2026-11-20T14:00:0{len(name)}Z", "events": []}
    file = f"/var/releases/{'4b' * 31}/web/manifests/init.pp"
    return {**plain, "file": file, "line": 3, "evaluation_time": 0.5, **more}


@pytest.mark.parametrize(
    ("more", "result"),
    [
        ({"failed": True, "changed": True}, ResourceResult.FAILED),
        ({"failed_to_restart": True, "changed": True}, ResourceResult.FAILED),
        ({"changed": True}, ResourceResult.CHANGED),
        ({"events": [{"property": "ensure", "status": "noop"}]}, ResourceResult.WOULD_CHANGE),
        ({"skipped": True}, ResourceResult.SKIPPED),
        ({"events": [{"property": "mode", "status": "audit"}]}, ResourceResult.UNCHANGED),
        ({}, ResourceResult.UNCHANGED),
    ],
)
def test_the_result_of_a_resource(more: dict[str, Any], result: ResourceResult) -> None:
    (found,) = resources_of({"resource_statuses": {"x": status("x", **more)}})
    assert found.result is result
    assert found.place == "web/manifests/init.pp:3"


def test_resources_are_sorted_by_time_and_slowest_by_duration() -> None:
    raw = [status("aaa"), status("b", evaluation_time=2), status("cc", evaluation_time=None)]
    found = resources_of({"resource_statuses": {str(i): one for i, one in enumerate(raw)}})
    assert [one.resource for one in found] == ["Exec[b]", "Exec[cc]", "Exec[aaa]"]
    assert [one.resource for one in slowest(found, 5)] == ["Exec[b]", "Exec[aaa]"]


@pytest.mark.parametrize("raw", [{"resource_statuses": []}, {"resource_statuses": {"x": {}}}])
def test_invalid_resources_of_a_report_are_refused(raw: dict[str, Any]) -> None:
    if raw["resource_statuses"]:
        with pytest.raises(ValueError, match="not a Puppet report"):
            resources_of(raw)
    else:
        assert resources_of(raw) == []


MINE = [case for case in CASES if case["kind"] == "facts_doc"]


def content(case: dict[str, Any]) -> bytes:
    text = str(case["input"])
    if case.get("encoding") == "python":
        text = eval(text)  # noqa: S307 - a file of this repository
    return b'{"name": "web01.example.com", "values": ' + text.encode() + b"}"


@pytest.mark.parametrize("case", MINE, ids=lambda case: case["id"])
def test_each_case_of_the_corpus_is_accepted_or_refused(case: dict[str, Any]) -> None:
    """tests/fleet/inventory/test_facts.py makes entries from the accepted cases."""
    if case["expect"] == "reject":
        with pytest.raises(InvalidInputError) as caught:
            parse_facts(content(case), where="facts")
        assert re.search(case["message"], str(caught.value)), str(caught.value)
        assert len(str(caught.value)) < 200
        return
    facts = parse_facts(content(case), where="facts")
    assert facts == json.loads(str(case["input"]))


def test_every_case_of_the_corpus_is_used() -> None:
    assert len(MINE) == 4


def test_missing_facts_and_bad_facts_are_different_errors(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="wrote no facts"):
        read_facts(tmp_path)
    file = tmp_path / CLIENT_DATA / "facts" / "web01.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({"values": {"a": "x" * MAX_FACTS}}))
    with pytest.raises(InvalidInputError, match=r"web01\.json: is too large: .* the limit is"):
        read_facts(tmp_path)
    file.write_text(json.dumps({"values": {"a": 1}}))
    assert read_facts(tmp_path) == {"a": 1}
