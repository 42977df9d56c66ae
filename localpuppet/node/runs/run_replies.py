"""The log and the report of a run as they may leave the node, limited in size.

Messages of Puppet hold values of resources, so each needs a separate right to read. Sensitive
values, diffs and contents of files never leave the node.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from localpuppet.base.errors import StateError
from localpuppet.base.formats.json_file import read_json
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.files import disk_errors, state_problem
from localpuppet.node.puppet.command import with_places_in_release
from localpuppet.node.puppet.resources import (
    ReportedResource,
    ResourceEvent,
    ResourceResult,
    resources_of,
    slowest,
)
from localpuppet.node.runs.log_end import LogEnd, LogExcerpt, weight
from localpuppet.node.runs.reason import published
from localpuppet.node.runs.records import RunDirectory
from localpuppet.node.runs.run import Status
from localpuppet.node.runs.run_context import RunContext, fitting, run_context

# Of a log the end, of a report what failed before what changed: bytes as JSON.
MAX_TOLD = 256 * 1024
# Bytes of the origins of lines as JSON.
MAX_ORIGINS = 128 * 1024
# Bytes of a line, or of a message about a resource.
MAX_LINE = 8 * 1024
MAX_EVENTS = 20
MAX_SLOWEST = 10
# Bytes of a report that is read for others: the agent takes several times as much memory for it.
MAX_REPORT = 32 * 1024 * 1024
TOLD = (
    ResourceResult.FAILED,
    ResourceResult.CHANGED,
    ResourceResult.WOULD_CHANGE,
    ResourceResult.SKIPPED,
)


def log_reply(run: RunDirectory, status: Status) -> dict[str, Json]:
    """Return the end of the run's log.

    Returns:
        `run`, `state`, `lines`, the number of lines `before` them and of omitted diff lines;
        `origins`: for each line `time`, `file` and `line` of Puppet's report, or null.
    """
    end = LogExcerpt(lines=[], before=0, left_out=0)
    with disk_errors(run.log), suppress(FileNotFoundError), run.log.open("rb") as log:
        end = LogEnd(most=MAX_TOLD, longest=MAX_LINE).read(log)
    return {
        "run": str(run.id),
        "state": str(status.state),
        "lines": [*end.lines],
        "origins": _origins(run, end.lines),
        "before": end.before,
        "left_out": end.left_out,
    }


def _origins(run: RunDirectory, lines: Sequence[str]) -> list[Json]:
    """Return where Puppet's report says that lines come from, the last ones within the limit."""
    try:
        report = report_of(run)
    except (FileNotFoundError, StateError, ValueError):
        return []
    logs = report.get("logs") if isinstance(report, dict) else None
    messages: dict[str, deque[Mapping[str, Any]]] = {}
    for item in logs if isinstance(logs, list) else ():
        if not isinstance(item, dict):
            continue
        source = "" if item.get("source") == "Puppet" else f"{item.get('source')}: "
        first = f"{source}{item.get('message')}".partition("\n")[0]
        messages.setdefault(first, deque()).append(item)
    origins: list[Json] = []
    room = MAX_ORIGINS
    for line in reversed(lines):
        known = messages.get(line.partition(": ")[2])
        origin: Json = None
        if known and room > 0:
            origin = {key: known[-1].get(key) for key in ("time", "file", "line")}
            known.pop()
        room -= weight(origin)
        origins.append(origin)
    return origins[::-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport(RunContext):
    """What a run did to which resources.

    Attributes:
        run: The status of the run, as JSON.
        report: Whether Puppet left a report.
        failed: Resources that failed; the next three by their names.
        left_out: How many resources exceed the limit.
        slowest: Those that took longest, without events.
    """

    run: Mapping[str, Any]
    report: bool
    failed: tuple[ReportedResource, ...] = ()
    changed: tuple[ReportedResource, ...] = ()
    would_change: tuple[ReportedResource, ...] = ()
    skipped: tuple[ReportedResource, ...] = ()
    left_out: int = 0
    slowest: tuple[ReportedResource, ...] = ()


def report_reply(run: RunDirectory, status: Status) -> RunReport:
    """Return what a run did to which resources, without values of Sensitive ones.

    Raises:
        StateError: The report is damaged or too large.
    """
    try:
        resources: list[ReportedResource] | None = resources_of(report_of(run))
    except FileNotFoundError:
        resources = None
    except ValueError as error:
        raise StateError(str(error), where=str(run.report)) from error
    context = run_context(run)
    size = left_out = 0
    listed: dict[str, Any] = {}
    for result in TOLD:
        shown = []
        for resource in map(_cut, resources or ()):
            if resource.result is not result:
                continue
            needed = weight(resource.to_dict())
            if size + needed > MAX_TOLD:
                left_out += 1
                continue
            size += needed
            shown.append(resource)
        listed[result.value] = tuple(shown)
    return RunReport(
        run=published(status).to_dict(),
        report=resources is not None,
        **listed,
        left_out=left_out,
        slowest=fitting(
            replace(_cut(slow), events=()) for slow in slowest(resources or [], MAX_SLOWEST)
        ),
        **{name: getattr(context, name) for name in RunContext.__slots__},
    )


def report_of(run: RunDirectory) -> dict[str, Any]:
    """Return Puppet's report of a run, within the size limit for other nodes.

    Raises:
        FileNotFoundError: Puppet left no report.
        StateError: The report is too large.
    """
    try:
        size = run.report.stat().st_size
    except FileNotFoundError:
        raise
    except OSError as error:
        raise state_problem(error, run.report) from error
    if size > MAX_REPORT:
        raise StateError(
            f"is too large to send: {size // 1024**2} MiB, the limit is "
            f"{MAX_REPORT // 1024**2} MiB",
            where=f"report of {run.id}",
            hint=f"'localpuppet report {run.id}' shows it on its own node",
        )
    return read_json(run.report)


def _cut(resource: ReportedResource) -> ReportedResource:
    """Return a resource with the texts and events that may leave the node."""
    return replace(
        resource,
        resource=one_line(resource.resource)[:MAX_LINE],
        file=one_line(resource.file)[:MAX_LINE],
        place=one_line(resource.place)[:MAX_LINE],
        events=tuple(
            ResourceEvent(
                property=event.property[:MAX_LINE],
                status=event.status,
                # A message begins with an empty line where a diff follows.
                message=with_places_in_release(one_line(event.message.partition("\n")[0]))[
                    :MAX_LINE
                ],
                time=event.time,
            )
            for event in resource.events[:MAX_EVENTS]
        ),
    )
