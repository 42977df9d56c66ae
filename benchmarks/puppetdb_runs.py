"""Runs of the nodes of `puppetdb_queries.py`: as summaries, and as commands for PuppetDB."""

import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

from localpuppet.base.formats.values import Json
from localpuppet.fleet.history.history_records import ResourceSummary, RunCounts, RunSummary
from localpuppet.node.puppet.fault import FailureCause
from localpuppet.node.puppet.resources import ResourceResult
from localpuppet.node.runs.run import Category, Outcome
from tests.fleet.make import a_resource, a_summary

HOUR = 3600.0
RUNS = 4
STATUSES = {
    ResourceResult.FAILED: "failure",
    ResourceResult.CHANGED: "success",
    ResourceResult.WOULD_CHANGE: "noop",
    ResourceResult.SKIPPED: "skipped",
}


def history_of(number: int, now: float) -> Iterator[RunSummary]:
    """Yield the runs of a node, the oldest first: each node ends with another kind of run.

    Args:
        number: The node's number.
        now: When the last run ended, in seconds since 1970.
    """
    for run in range(RUNS):
        ended = now - 7 * HOUR * (RUNS - 1 - run) - number
        yield _RUNS[(number + run) % len(_RUNS)](replace(a_summary(ended), noop=False))


def unchanged(plain: RunSummary) -> RunSummary:
    """Return a run that changed nothing."""
    return plain


def changed(plain: RunSummary) -> RunSummary:
    """Return a run that changed four resources."""
    files = tuple(a_resource(number) for number in range(1, 4))
    return _with(plain, Outcome.CHANGED, (*files, a_resource(5, type="Service", title="sshd")))


def failed(plain: RunSummary) -> RunSummary:
    """Return a run in which a resource failed."""
    resources = (
        a_resource(9, type="Package", title="nginx", status=ResourceResult.FAILED),
        a_resource(1),
        a_resource(12, type="Service", title="nginx", status=ResourceResult.SKIPPED),
    )
    cause = FailureCause(error="Could not find …", resource="Package[nginx]", place="shop.pp:9")
    run = _with(plain, Outcome.FAILED, resources)
    return replace(run, category=Category.RESOURCES_FAILED, failure_cause=cause)


def foreseen(plain: RunSummary) -> RunSummary:
    """Return a run with `--noop` that would have changed two resources."""
    resources = tuple(a_resource(line, status=ResourceResult.WOULD_CHANGE) for line in (1, 2))
    planned = _with(plain, Outcome.UNCHANGED, resources)
    return replace(planned, category=Category.NOOP_PENDING, noop=True)


def corrected(plain: RunSummary) -> RunSummary:
    """Return a run that restored an earlier value."""
    run = _with(plain, Outcome.CHANGED, (a_resource(1, corrective_change=True),))
    return replace(run, corrective_change=True)


_RUNS = (unchanged, changed, failed, foreseen, corrected)


def _with(
    plain: RunSummary, outcome: Outcome, resources: tuple[ResourceSummary, ...]
) -> RunSummary:
    def count(*results: ResourceResult) -> int:
        return sum(resource.status in results for resource in resources)

    counts = RunCounts(
        total=150,
        changed=count(ResourceResult.CHANGED),
        failed=count(ResourceResult.FAILED),
        skipped=count(ResourceResult.SKIPPED),
        out_of_sync=len(resources) - count(ResourceResult.SKIPPED),
        corrective=sum(resource.corrective_change for resource in resources),
    )
    return replace(plain, outcome=outcome, counts=counts, resources=resources)


def report_of(node: str, run: RunSummary) -> dict[str, Json]:
    """Return a run as Puppet's terminus sends it: the payload of `store report`, version 8."""
    ended = stamp(run.finished_at)
    status = run.outcome.value if run.outcome is not None else "failed"
    return {
        "certname": node,
        "environment": run.environment,
        "puppet_version": "7.23.0",
        "report_format": 12,
        "configuration_version": run.commit,
        "start_time": stamp(run.started_at),
        "end_time": ended,
        "producer_timestamp": ended,
        "producer": node,
        "transaction_uuid": str(uuid.uuid5(uuid.NAMESPACE_OID, f"{node} {run.run}")),
        "catalog_uuid": None,
        "code_id": run.commit,
        "job_id": None,
        "cached_catalog_status": "not_used",
        "status": status,
        "noop": run.noop,
        "noop_pending": run.category is Category.NOOP_PENDING,
        "corrective_change": run.corrective_change,
        "metrics": [*_metrics(run)],
        "logs": [],
        "resources": [_resource(resource, ended) for resource in run.resources],
    }


def _metrics(run: RunSummary) -> Iterator[dict[str, Json]]:
    statuses = [STATUSES[resource.status] for resource in run.resources]
    events = {status: statuses.count(status) for status in ("failure", "noop", "success")}
    counts = run.counts
    groups: dict[str, dict[str, int]] = {
        "changes": {"total": events["success"]},
        "events": {**events, "total": sum(events.values())},
        "resources": {
            "changed": counts.changed,
            "corrective_change": counts.corrective,
            "failed": counts.failed,
            "out_of_sync": counts.out_of_sync,
            "skipped": counts.skipped,
            "total": counts.total,
        },
        "time": {"total": round(run.finished_at - run.started_at)},
    }
    for category, values in groups.items():
        for name, value in values.items():
            yield {"category": category, "name": name, "value": value}


def _resource(resource: ResourceSummary, ended: str) -> dict[str, Json]:
    event: dict[str, Json] = {
        "status": STATUSES[resource.status],
        "timestamp": ended,
        "property": None,
        "name": None,
        "old_value": None,
        "new_value": None,
        "message": None,
        "corrective_change": resource.corrective_change,
    }
    skipped = resource.status is ResourceResult.SKIPPED
    return {
        "timestamp": ended,
        "resource_type": resource.type,
        "resource_title": resource.title,
        "skipped": skipped,
        "events": [] if skipped else [event],
        "file": resource.file,
        "line": resource.line,
        "containment_path": ["Stage[main]", resource.containing_class],
        "corrective_change": resource.corrective_change,
    }


def stamp(at: float) -> str:
    """Return a time as PuppetDB writes it."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + "Z"
