"""The end of a run in the dashboard's memory, and what the run did to resources."""

from dataclasses import dataclass

from localpuppet.fleet.history.run_summary import ResourceSummary, RunSummary
from localpuppet.fleet.inventory.node_row import NodeRow
from localpuppet.fleet.inventory.run_kind import Kind, kind_of
from localpuppet.node.puppet.fault import FailureCause
from localpuppet.node.puppet.resources import ResourceResult

# Seconds for which ends of runs are kept.
KEPT = 90 * 86400.0
HOUR = 3600.0
# What charts and filters distinguish.
GOOD, CHANGED, BAD = "no change", "changed", "failed"
PARTS = (BAD, CHANGED, GOOD)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResource:
    """A resource that failed, changed, would change or was skipped in a run.

    Attributes:
        resource: Type and title.
        place: File and line of the declaration; empty if unknown.
        result: The result.
        drift: Whether the run corrected it: Puppet reports that, or the run before had applied the
            same release.
    """

    resource: str
    place: str
    result: ResourceResult
    drift: bool

    @classmethod
    def of(cls, summary: ResourceSummary) -> "RunResource":
        """Return a resource of a run summary."""
        line = "" if summary.line is None else f":{summary.line}"
        return cls(
            resource=f"{summary.type}[{summary.title}]",
            place=f"{summary.file}{line}" if summary.file else "",
            result=summary.status,
            drift=summary.corrective_change,
        )

    @property
    def word(self) -> str:
        """Return the result in words."""
        return "corrected" if self.drift else self.result.replace("_", " ")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The end of a run.

    Attributes:
        node: The node.
        run: Its id.
        at: The time, seconds since 1970, UTC.
        outcome: The result.
        release: The release.
        reason: The first error or the reason, one line, or empty.
        failure_cause: The key of its failure cause, see `NodeRow.failure_cause`, or empty.
        cause: What led to the run, or empty.
        seconds: Its duration; `None` without a run summary.
        resources: Resources that failed, changed, would change or were skipped.
        more: How many further such resources there are.
    """

    node: str
    run: str
    at: float
    outcome: Kind
    release: str
    reason: str
    failure_cause: str = ""
    cause: str = ""
    seconds: int | None = None
    resources: tuple[RunResource, ...] = ()
    more: int = 0

    @classmethod
    def of_summary(cls, node: str, summary: RunSummary) -> "RunResult":
        """Return the end of a run in a run summary."""
        failure = summary.failure_cause or FailureCause(error="")
        outcome = Kind.REFUSED
        if summary.outcome is not None:
            outcome = kind_of(
                {
                    "outcome": summary.outcome,
                    "category": summary.category,
                    "noop": summary.noop,
                    "corrective_change": summary.corrective_change,
                }
            )
        row = NodeRow(
            node=node,
            outcome=outcome,
            error=failure.error if outcome.bad else "",
            place=failure.place,
            reason=summary.reason,
        )
        return cls(
            node=node,
            run=summary.run,
            at=summary.finished_at,
            outcome=outcome,
            release=summary.release,
            reason=row.error or row.reason,
            failure_cause=row.failure_cause,
            cause=summary.cause,
            seconds=round(summary.finished_at - summary.started_at),
            resources=tuple(map(RunResource.of, summary.resources)),
            more=summary.more,
        )

    @classmethod
    def of(cls, row: NodeRow) -> "RunResult | None":
        """Return the end of a node's last run, or `None`."""
        if row.finished_at is None or not row.run:
            return None
        return cls(
            node=row.node,
            run=row.run,
            at=row.finished_at,
            outcome=row.outcome,
            release=row.release,
            reason=row.error or row.reason,
            failure_cause=row.failure_cause,
        )


def part_of(kind: Kind) -> str:
    """Return the part of a chart that a result counts for: `GOOD`, `CHANGED` or `BAD`."""
    return BAD if kind.bad else CHANGED if kind in (Kind.CHANGED, Kind.CORRECTED) else GOOD
