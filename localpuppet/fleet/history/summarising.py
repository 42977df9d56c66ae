"""Make run summaries from the records of a node."""

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from localpuppet.base.errors import StateError
from localpuppet.base.formats.text import shortened
from localpuppet.fleet.bus.bus_limits import MAX_RUN_COUNT, MAX_RUN_TEXT
from localpuppet.fleet.history.day import SLOTS
from localpuppet.fleet.history.run_summary import ResourceSummary, RunCounts, RunSummary
from localpuppet.fleet.inventory.run_end import RunEnd
from localpuppet.node.puppet.fault import public_place, public_reference
from localpuppet.node.puppet.report import Resources
from localpuppet.node.puppet.resources import ReportedResource, ResourceResult, resources_of
from localpuppet.node.runs.run import Outcome, RunState, Status
from localpuppet.node.runs.run_records import Records, RunDirectory
from localpuppet.node.runs.run_replies import report_of

# Runs of which the first history is made, at most.
MAX_FIRST = 500
# Runs before the last one that are searched for an interrupted one.
LOOKED_AT = 8
# A class in a containment path: other resources have a title in brackets.
_CLASS = re.compile(r"[A-Z]\w*(::[A-Z]\w*)*\Z", re.ASCII)


def last_end(records: Records, interval: float | None) -> RunEnd | None:
    """Return the end of a node's last finished run; `None` before the first one.

    Args:
        interval: See `RunEnd.run_interval`.
    """
    last = next(records.finished(), None)
    return None if last is None else RunEnd.of_run(last, records.streak(last), interval)


def summarise_run(
    run: RunDirectory, status: Status, end: RunEnd, *, commit: str | None
) -> RunSummary:
    """Return the summary of a finished run.

    Args:
        commit: The commit of its release; `None` if unknown.
    """
    request: Mapping[str, Any] = {}
    with suppress(FileNotFoundError, StateError):
        request = run.read_request()
    resources = _resources(run)
    corrective = sum(resource.corrective_change for resource in resources)
    summary = RunSummary.of(
        end,
        commit=commit,
        environment=shortened(str(request.get("environment") or ""), MAX_RUN_TEXT),
        cause=shortened(str(request.get("cause") or ""), MAX_RUN_TEXT),
        counts=_counts(status, corrective),
    )
    return summary.within_limits(resources)


def recent_runs(records: Records) -> Iterator[tuple[RunDirectory, Status]]:
    """Yield the finished runs of the days that the bus has, the newest first."""
    ids = records.ids()
    for run in ids[:MAX_FIRST]:
        if ids[0].time - run.time > timedelta(days=SLOTS - 1):
            return
        directory = RunDirectory(records.directory / run)
        status = records.status(directory)
        if status.state is RunState.FINISHED:
            yield directory, status


def interrupted_before(
    records: Records, run: RunDirectory
) -> Iterator[tuple[RunDirectory, Status]]:
    """Yield the runs directly before a run whose supervisors died, so that no run reported them."""
    older = [run_id for run_id in records.ids() if run_id < run.id]
    for before in older[:LOOKED_AT]:
        directory = RunDirectory(records.directory / before)
        status = records.status(directory)
        if status.outcome is not Outcome.INTERRUPTED:
            return
        yield directory, status


def _resources(run: RunDirectory) -> list[ResourceSummary]:
    try:
        raw = report_of(run)
        states = resources_of(raw)
    except (FileNotFoundError, StateError, ValueError):
        return []  # the run's own record has the reason
    listed = (raw.get("resource_statuses") or {}).values()
    statuses = {str(status["resource"]): status for status in listed}
    return [
        _resource(resource, statuses[resource.resource])
        for resource in states
        if resource.result is not ResourceResult.UNCHANGED
    ]


def _resource(resource: ReportedResource, status: Mapping[str, Any]) -> ResourceSummary:
    kind, _, title = public_reference(resource.resource).partition("[")
    line = resource.line
    return ResourceSummary(
        type=kind,
        title=title.removesuffix("]"),
        status=resource.result,
        file=public_place(resource.file, None),
        line=line if line is not None and 0 <= line <= MAX_RUN_COUNT else None,
        corrective_change=status.get("corrective_change") is True,
        containing_class=_class_of(status.get("containment_path")),
    )


def _class_of(path: object) -> str:
    """Return the last class in a containment path; empty without one."""
    names = map(str, reversed(path)) if isinstance(path, list) else ()
    return next((name for name in names if _CLASS.match(name) and len(name) <= MAX_RUN_TEXT), "")


def _counts(status: Status, corrective: int) -> RunCounts:
    numbers = asdict(status.resources or Resources())
    bounded = {name: max(0, min(count, MAX_RUN_COUNT)) for name, count in numbers.items()}
    return RunCounts(**bounded, corrective=corrective)
