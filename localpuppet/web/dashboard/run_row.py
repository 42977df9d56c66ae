"""A run as a row of the dashboard's memory: what lists need of the summary that its node signed.

A row decides nothing: the node decided the result, the failure cause and the counts when the run
ended. Its fields have the names of the summary; `outcome` and `failure_cause` are the words of all
views, those of `NodeRow`. A run without a summary, which only the presence of a dead node tells,
has fewer.
"""

from typing import Any

from localpuppet.base.value import Value
from localpuppet.fleet.history.history_records import ResourceSummary, RunCounts, RunSummary
from localpuppet.fleet.inventory.run_end import Kind, RunEnd

# Seconds for which ends of runs are kept.
KEPT = 90 * 86400.0
HOUR = 3600.0


class RunRow(Value):
    """A run, with the columns of the table of runs.

    Attributes:
        reason: The first error or the reason.
        place: File and line of the first error.
        failure_cause: The key of its failure cause, see `RunEnd.failure_key`.
        seconds: Its duration; `None` without a run summary.
        counts: Resources by result; `None` without a run summary.
        more: How many further such resources there are.
    """

    node: str
    run: str
    finished_at: float
    outcome: Kind
    release: str
    reason: str
    place: str = ""
    failure_cause: str = ""
    cause: str = ""
    seconds: int | None = None
    commit: str = ""
    environment: str = ""
    noop: bool = False
    corrective_change: bool = False
    refusal: str = ""
    counts: RunCounts | None = None
    resources: tuple[ResourceSummary, ...] = ()
    more: int = 0

    @classmethod
    def of_end(cls, node: str, end: RunEnd, **more: Any) -> "RunRow":  # noqa: ANN401 - fields
        """Return the end of a run of a node; `more` has what only a run summary says."""
        return cls(
            node=node,
            run=end.run,
            finished_at=end.finished_at,
            outcome=end.kind,
            release=end.release,
            reason=end.shown_cause.error or end.reason,
            place=end.shown_cause.place,
            failure_cause=end.failure_key,
            **more,
        )

    @classmethod
    def of_summary(cls, node: str, summary: RunSummary) -> "RunRow":
        """Return the end of a run in a run summary."""
        return cls.of_end(
            node,
            summary,
            cause=summary.cause,
            seconds=round(summary.finished_at - summary.started_at),
            commit=summary.commit or "",
            environment=summary.environment,
            noop=summary.noop,
            corrective_change=summary.corrective_change,
            refusal=summary.refusal or "",
            counts=summary.counts,
            resources=summary.resources,
            more=summary.more,
        )
