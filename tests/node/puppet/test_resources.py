"""The results of resources in a report."""

from typing import Any

import pytest

from localpuppet.node.puppet.resources import ResourceResult, resources_of, slowest


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
