"""What a run did to each resource, from Puppet's own report."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from localpuppet.base.formats.converter import JsonRecord
from localpuppet.base.value import Value
from localpuppet.node.puppet.command_line import in_release

NOTICEABLE = 0.001


class ResourceResult(StrEnum):
    FAILED = "failed"
    CHANGED = "changed"
    WOULD_CHANGE = "would_change"
    SKIPPED = "skipped"
    UNCHANGED = "unchanged"


class ResourceEvent(Value):
    """An event of a property: `success`, `failure`, `noop` or `audit`.

    Puppet's message has values, except Sensitive ones.
    """

    property: str
    status: str
    message: str
    time: str


class ReportedResource(JsonRecord):
    """A resource of the catalog, with its result.

    `place` is file and line in the release: `profile/manifests/db.pp:3`. It was not evaluated if it
    has no `seconds`.
    """

    resource: str
    result: ResourceResult
    file: str
    line: int | None
    place: str
    seconds: float | None
    time: str
    events: tuple[ResourceEvent, ...]


def resources_of(raw: Mapping[str, Any]) -> list[ReportedResource]:
    """Return the resources of a report, in the order of evaluation.

    Raises:
        ValueError: The value is not a report.
    """
    try:
        resources = [_resource(status) for status in (raw.get("resource_statuses") or {}).values()]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a Puppet report: {error!r}") from error
    return sorted(resources, key=lambda resource: resource.time)


def slowest(resources: list[ReportedResource], count: int) -> list[ReportedResource]:
    """Return the resources that took longest, the longest first; none that took no time."""
    timed = [resource for resource in resources if (resource.seconds or 0) >= NOTICEABLE]
    return sorted(timed, key=lambda resource: -(resource.seconds or 0))[:count]


def _resource(raw: Mapping[str, Any]) -> ReportedResource:
    events = tuple(_event(event) for event in raw.get("events") or ())
    line, seconds = raw.get("line"), raw.get("evaluation_time")
    file = str(raw.get("file") or "")
    return ReportedResource(
        resource=str(raw["resource"]),
        result=_result(raw, events),
        file=file,
        line=line if isinstance(line, int) else None,
        place=f"{in_release(file)}{f':{line}' if file and line else ''}",
        seconds=float(seconds) if isinstance(seconds, int | float) else None,
        time=str(raw.get("time") or ""),
        events=events,
    )


def _event(raw: Mapping[str, Any]) -> ResourceEvent:
    return ResourceEvent(
        property=str(raw.get("property") or ""),
        status=str(raw.get("status") or ""),
        message=str(raw.get("message") or ""),
        time=str(raw.get("time") or ""),
    )


def _result(raw: Mapping[str, Any], events: tuple[ResourceEvent, ...]) -> ResourceResult:
    if raw.get("failed") or raw.get("failed_to_restart"):
        return ResourceResult.FAILED
    if raw.get("changed"):
        return ResourceResult.CHANGED
    if any(event.status == "noop" for event in events):
        return ResourceResult.WOULD_CHANGE
    return ResourceResult.SKIPPED if raw.get("skipped") else ResourceResult.UNCHANGED
