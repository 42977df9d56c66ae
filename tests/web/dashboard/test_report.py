"""Reports that nodes send."""

from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.values import Json
from localpuppet.web.dashboard.report import MOST, RunReport

ONE: dict[str, Json] = {
    "resource": "File[a]",
    "file": "a.pp",
    "line": 3,
    "seconds": 1,
    "events": [{"message": "x"}],
}


def test_the_parts_of_a_report_are_in_order_of_importance() -> None:
    read = RunReport.read({"report": True, "skipped": [ONE], "failed": [ONE] * 500, "left_out": 2})
    assert [(part.name, len(part.resources), part.more) for part in read.parts] == [
        ("failed", MOST, 500 - MOST),
        ("skipped", 1, 0),
    ]
    (resource,) = read.parts[1].resources
    assert (resource.place, resource.seconds, resource.messages) == ("a.pp:3", 1.0, ("x",))
    assert (read.there, read.left_out) == (True, 2)


def test_a_missing_report_has_no_parts() -> None:
    assert RunReport.read({}) == RunReport(there=False, parts=(), left_out=0)


@pytest.mark.parametrize(
    "told", [{"failed": 1}, {"failed": [1]}, {"failed": [{}]}, {"failed": [{"resource": None}]}]
)
def test_an_invalid_report_is_refused(told: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match="the node's answer"):
        RunReport.read(told)


def test_places_in_messages_are_relative_to_the_release() -> None:
    tree = f"/var/lib/localpuppet/releases/{'4be1' * 16}"
    event: Json = {"message": f"failed: x (file: {tree}/web/manifests/init.pp, line: 3)"}
    (part,) = RunReport.read({"failed": [{**ONE, "events": [event]}]}).parts
    assert part.resources[0].messages == ("failed: x (file: web/manifests/init.pp, line: 3)",)


def test_invalid_fields_of_a_resource_are_left_out() -> None:
    odd: Json = {**ONE, "line": "x", "seconds": float("inf"), "events": [1, {"message": 2}]}
    (part,) = RunReport.read({"failed": [odd]}).parts
    (resource,) = part.resources
    assert (resource.place, resource.seconds, resource.messages) == ("a.pp", None, ())
