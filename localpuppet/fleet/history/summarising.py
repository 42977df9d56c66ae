"""Make run summaries from the records of a node."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from localpuppet.base.errors import StateError
from localpuppet.base.formats.text import shortened
from localpuppet.base.formats.times import parse_time
from localpuppet.fleet.history.day import SLOTS
from localpuppet.fleet.history.run_summary import (
    MAX_COUNT,
    MAX_TEXT,
    ResourceSummary,
    RunCounts,
    RunSummary,
)
from localpuppet.node.puppet.fault import FailureCause, public_place, public_reference
from localpuppet.node.puppet.report import Resources
from localpuppet.node.puppet.resources import ReportedResource, ResourceResult, resources_of
from localpuppet.node.runs.reason import category, public_reason
from localpuppet.node.runs.records import Records, RunDirectory
from localpuppet.node.runs.run import REFUSALS, Attempt, Outcome, RunState, Status, new_run_id
from localpuppet.node.runs.run_replies import report_of

# Runs of which the first history is made, at most.
MAX_FIRST = 500
# Runs before the last one that are searched for an interrupted one.
LOOKED_AT = 8
# A class in a containment path: other resources have a title in brackets.
_CLASS = re.compile(r"[A-Z]\w*(::[A-Z]\w*)*\Z", re.ASCII)


def summarise_run(run: RunDirectory, status: Status, *, commit: str | None) -> RunSummary:
    """Return the summary of a finished run.

    Args:
        run: Its record; a part that cannot be read is left out.
        status: Its end.
        commit: The commit of its release; `None` if unknown.
    """
    request: Mapping[str, Any] = {}
    with suppress(FileNotFoundError, StateError):
        request = run.read_request()
    started = parse_time(status.started_at).timestamp()
    finished = parse_time(status.finished_at or status.started_at).timestamp()
    resources = _resources(run)
    corrective = sum(resource.corrective_change for resource in resources)
    cause = status.failure_cause
    summary = RunSummary(
        run=status.id,
        release=shortened(status.release, MAX_TEXT),
        commit=commit,
        environment=shortened(str(request.get("environment") or ""), MAX_TEXT),
        cause=shortened(str(request.get("cause") or ""), MAX_TEXT),
        started_at=min(started, finished),  # the clock may have been set back
        finished_at=finished,
        outcome=status.outcome or Outcome.INTERRUPTED,
        category=category(status),
        noop=status.noop,
        corrective_change=status.corrective_change,
        reason=shortened(public_reason(status), MAX_TEXT),
        counts=_counts(status, corrective),
        failure_cause=None if cause is None else FailureCause(**cause),
    )
    return summary.within_limits(resources)


def summarise_attempt(attempt: Attempt) -> RunSummary:
    """Return the summary of a refused apply; equal refusals in a row have one identity."""
    since, last = parse_time(attempt.since), parse_time(attempt.at)
    subject = "\0".join((attempt.refusal, attempt.reason, attempt.release, attempt.input))
    digits = hashlib.sha256(subject.encode("utf-8", "replace")).hexdigest()[:4]
    return RunSummary(
        run=new_run_id(since, digits, None),
        release=shortened(attempt.release, MAX_TEXT),
        cause=shortened(attempt.cause, MAX_TEXT),
        started_at=min(since, last).timestamp(),
        finished_at=last.timestamp(),
        refusal=attempt.refusal,
        times=min(attempt.times, MAX_COUNT),
        noop=attempt.noop,
        reason=REFUSALS[attempt.refusal],
    )


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
        line=line if line is not None and 0 <= line <= MAX_COUNT else None,
        corrective_change=status.get("corrective_change") is True,
        containing_class=_class_of(status.get("containment_path")),
    )


def _class_of(path: object) -> str:
    """Return the last class in a containment path; empty without one."""
    names = map(str, reversed(path)) if isinstance(path, list) else ()
    return next((name for name in names if _CLASS.match(name) and len(name) <= MAX_TEXT), "")


def _counts(status: Status, corrective: int) -> RunCounts:
    numbers = asdict(status.resources or Resources())
    bounded = {name: max(0, min(count, MAX_COUNT)) for name, count in numbers.items()}
    return RunCounts(**bounded, corrective=corrective)
