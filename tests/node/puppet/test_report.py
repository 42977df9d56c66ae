"""The parts of Puppet's report that localpuppet uses."""

from typing import Any

import pytest

from localpuppet.node.puppet.fault import FailureCause
from localpuppet.node.puppet.report import PuppetReport

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
        error="… returned … instead of one of …", resource="Exec[a]"
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
