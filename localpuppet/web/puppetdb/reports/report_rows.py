"""What a run summary says of a run as the metrics and the log of a report.

- Metrics count resources. An event is a resource that failed, changed, would change or was skipped.
"""

from localpuppet.base.formats.times import show_epoch
from localpuppet.base.formats.values import Json
from localpuppet.fleet.history.run_summary import RunCounts
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.node.puppet.fault import LEFT_OUT
from localpuppet.node.puppet.resources import ResourceResult
from localpuppet.web.dashboard.run_results import RunResult

PUPPET = "Puppet"
FAILED = "failed"
STATUS = {
    **dict.fromkeys(Kind, FAILED),
    **dict.fromkeys((Kind.CHANGED, Kind.CORRECTED), "changed"),
    **dict.fromkeys((Kind.UNCHANGED, Kind.NOOP_PENDING, Kind.NOOP_CLEAN), "unchanged"),
}


def metrics(seconds: int | None, counts: RunCounts | None) -> list[Json]:
    """Return the metrics of a report, without those that only the node has.

    Args:
        counts: Resources by result; `None` without a run summary.
    """
    if counts is None:
        return []
    numbers: dict[str, dict[str, int | None]] = {
        "resources": {
            "total": counts.total,
            "changed": counts.changed,
            "failed": counts.failed,
            "skipped": counts.skipped,
            "out_of_sync": counts.out_of_sync,
            "corrective_change": counts.corrective,
        },
        "time": {"total": seconds},
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
    lines, is_failed = [], STATUS[run.outcome] == FAILED
    if is_failed:
        text = run.reason or f"the run ended as: {run.outcome}"
        failed = [item for item in run.resources if item.status is ResourceResult.FAILED]
        if not failed:
            lines.append(log_line("err", text, time=show_epoch(run.at)))
        for item in failed:
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


def shown_title(title: str, place: str) -> str:
    """Return a title; one that stays on the node has its place, so that two are not one subject."""
    return f"{title} ({place})" if title == LEFT_OUT and place else title


def _events(counts: RunCounts) -> dict[str, int | None]:
    noop = max(0, counts.out_of_sync - counts.changed - counts.failed)
    return {
        "success": counts.changed,
        "failure": counts.failed,
        "noop": noop,
        "total": counts.changed + counts.failed + noop,
    }
