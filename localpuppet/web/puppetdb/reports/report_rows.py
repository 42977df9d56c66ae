"""The rows of `reports`, `events` and the report columns of `nodes`, made of runs.

- A run that did not end well is never `unchanged`: Puppet's own report of a failed compilation may
  say so. A cancelled run and one with an unknown end are `failed`, too.
- `configuration_version` and `code_id` are the commit of the release, or its name if the commit is
  unknown. `producer` is the node, which sends its own summaries. All times but `start_time` are the
  end of the run.
- A run summary has no values, so `property`, `old_value`, `new_value` and `message` of an event are
  null. Its class and containment path are null, too: only the node has them.
- Metrics count resources. An event is a resource that failed, changed, would change or was skipped.
"""

from uuid import UUID

from localpuppet.base.formats.times import show_epoch
from localpuppet.base.formats.values import Json
from localpuppet.fleet.history.run_summary import RunCounts
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.node.puppet.fault import LEFT_OUT
from localpuppet.node.puppet.resources import ResourceResult
from localpuppet.web.dashboard.run_results import RunDetails, RunResource, RunResult
from localpuppet.web.puppetdb.reports.report_hash import report_hash

Row = dict[str, Json]
PUPPET = "Puppet"
FAILED, CHANGED, UNCHANGED = "failed", "changed", "unchanged"
# Puppet 7 and 8 write reports of this format.
REPORT_FORMAT = 12
_STATUS = {
    **dict.fromkeys(Kind, FAILED),
    **dict.fromkeys((Kind.CHANGED, Kind.CORRECTED), CHANGED),
    **dict.fromkeys((Kind.UNCHANGED, Kind.NOOP_PENDING, Kind.NOOP_CLEAN), UNCHANGED),
}
EVENT_STATUS = {
    ResourceResult.FAILED: "failure",
    ResourceResult.CHANGED: "success",
    ResourceResult.WOULD_CHANGE: "noop",
    ResourceResult.SKIPPED: "skipped",
}
# The columns that a report has from the profile of its run.
_NODE_COLUMNS = {
    "environment": "report_environment",
    "status": "latest_report_status",
    "noop": "latest_report_noop",
    "noop_pending": "latest_report_noop_pending",
    "corrective_change": "latest_report_corrective_change",
    "job_id": "latest_report_job_id",
    "cached_catalog_status": "cached_catalog_status",
}


def profile_row(run: RunResult) -> Row:
    """Return the columns of a report that all runs of a profile share."""
    details = run.details or RunDetails()
    return {
        "environment": details.environment or "production",
        "status": _STATUS[run.outcome],
        "noop": details.noop or run.outcome in (Kind.NOOP_PENDING, Kind.NOOP_CLEAN),
        "noop_pending": run.outcome is Kind.NOOP_PENDING,
        "corrective_change": details.corrective or run.outcome is Kind.CORRECTED,
        # Run summaries do not have it; Puppetboard's list of reports requires a text.
        "puppet_version": "",
        "report_format": REPORT_FORMAT,
        "configuration_version": details.commit or run.release,
        "code_id": details.commit or None,
        "job_id": None,
        "cached_catalog_status": "not_used",
        "type": "agent",
    }


def report_row(run: RunResult) -> Row:
    """Return the report of a run; its events are those of `RunResult.resources`."""
    hash_ = report_hash(run.node, run.run)
    href = f"/pdb/query/v4/reports/{hash_}/"
    uuid, end = str(UUID(hash_[:32])), show_epoch(run.at)
    return {
        "hash": hash_,
        "certname": run.node,
        **profile_row(run),
        "start_time": _start(run),
        "end_time": end,
        "producer_timestamp": end,
        "receive_time": end,
        "producer": run.node,
        "transaction_uuid": uuid,
        "catalog_uuid": uuid,
        "metrics": {"href": f"{href}metrics", "data": metrics(run)},
        "logs": {"href": f"{href}logs", "data": [*log_of(run)]},
        "resource_events": {
            "href": f"{href}events",
            "data": [_event(run, resource) for resource in run.resources],
        },
    }


def node_columns(profile: Row, hash_: str, end: str) -> Row:
    """Return the columns of `nodes` that come from the newest report.

    Args:
        profile: See `profile_row`.
        hash_: The report.
        end: When its run ended.
    """
    return {
        "report_timestamp": end,
        **{column: profile[name] for name, column in _NODE_COLUMNS.items()},
        "latest_report_hash": hash_,
    }


def event_row(run: RunResult, resource: RunResource) -> Row:
    """Return the event of a resource in a run."""
    profile, end = profile_row(run), show_epoch(run.at)
    return {
        "certname": run.node,
        "report": report_hash(run.node, run.run),
        "environment": profile["environment"],
        "configuration_version": profile["configuration_version"],
        "run_start_time": _start(run),
        "run_end_time": end,
        "report_receive_time": end,
        **_event(run, resource),
    }


def metrics(run: RunResult) -> list[Json]:
    """Return the metrics of a report, without those that only the node has."""
    if run.details is None:
        return []
    counts = run.details.counts
    numbers: dict[str, dict[str, int | None]] = {
        "resources": {
            "total": counts.total,
            "changed": counts.changed,
            "failed": counts.failed,
            "skipped": counts.skipped,
            "out_of_sync": counts.out_of_sync,
            "corrective_change": counts.corrective,
        },
        "time": {"total": run.seconds},
        "changes": {"total": counts.changed},
        "events": _events(counts),
    }
    return [
        {"category": category, "name": name, "value": value}
        for category, named in numbers.items()
        for name, value in named.items()
        if value is not None
    ]


def log_of(run: RunResult) -> list[dict[str, Json]]:
    """Return what the summary of a run says, as lines of its log: a failed one has an error.

    The reason is that of the first resource that failed; the others have a line each.
    """
    lines, is_failed = [], _STATUS[run.outcome] == FAILED
    if is_failed:
        text = run.reason or f"the run ended as: {run.outcome}"
        failed = [item for item in run.resources if item.result is ResourceResult.FAILED]
        for item in failed or [RunResource(resource="", result=ResourceResult.FAILED, drift=False)]:
            line = log_line("err", text, time=show_epoch(run.at), source=item.resource or PUPPET)
            lines.append({**line, "file": item.file or None, "line": item.line})
            text = "failed, too"
    if run.seconds is not None or not is_failed:  # without a summary, there may be no run
        lines.append(log_line("notice", _ended(run), time=show_epoch(run.at)))
    return lines


def log_line(level: str, message: str, *, time: str, source: str = PUPPET) -> dict[str, Json]:
    """Return a line of a report's log."""
    return {
        "level": level,
        "message": message,
        "source": source,
        "tags": [level],
        "time": time,
        "file": None,
        "line": None,
    }


def _ended(run: RunResult) -> str:
    release = run.release or "an unknown release"
    if run.outcome is Kind.REFUSED:
        return f"localpuppet refused to apply {release}"
    seconds = "" if run.seconds is None else f" in {run.seconds} s"
    cause = f", cause: {run.cause}" if run.cause else ""
    return f"localpuppet ended the run of {release}{seconds}: {run.outcome}{cause}"


def _start(run: RunResult) -> str:
    return show_epoch(run.at - (run.seconds or 0))


def _event(run: RunResult, resource: RunResource) -> Row:
    kind, _, title = resource.resource.partition("[")
    return {
        "timestamp": show_epoch(run.at),
        "status": EVENT_STATUS[resource.result],
        "corrective_change": resource.drift,
        "resource_type": kind,
        "resource_title": _title(title.removesuffix("]"), resource),
        "property": None,
        "name": None,
        "old_value": None,
        "new_value": None,
        "message": None,
        "file": resource.file or None,
        "line": resource.line,
        "containment_path": None,
        "containing_class": resource.containing_class or None,
    }


def _title(title: str, resource: RunResource) -> str:
    """Return a title; one that stays on the node has its place, so that two are not one subject."""
    return f"{title} ({resource.place})" if title == LEFT_OUT and resource.place else title


def _events(counts: RunCounts) -> dict[str, int | None]:
    noop = max(0, counts.out_of_sync - counts.changed - counts.failed)
    return {
        "success": counts.changed,
        "failure": counts.failed,
        "noop": noop,
        "total": counts.changed + counts.failed + noop,
    }
