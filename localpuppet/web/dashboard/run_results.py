"""The end of a run in the dashboard's memory, and what the run did to resources."""

from dataclasses import dataclass, field
from typing import Any

from localpuppet.fleet.history.run_summary import ResourceSummary, RunCounts, RunSummary
from localpuppet.fleet.inventory.run_end import Kind, RunEnd
from localpuppet.node.puppet.resources import ResourceResult

# Seconds for which ends of runs are kept.
KEPT = 90 * 86400.0
HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResource:
    """A resource that failed, changed, would change or was skipped in a run.

    Attributes:
        resource: Type and title.
        result: The result.
        drift: Whether the run corrected it: Puppet reports that, or the run before had applied the
            same release.
        file: The file of the declaration; empty if unknown.
        line: The line in the file; `None` if unknown.
        containing_class: The innermost class that contains it; empty if unknown.
    """

    resource: str
    result: ResourceResult
    drift: bool
    file: str = ""
    line: int | None = None
    containing_class: str = ""

    @classmethod
    def of(cls, summary: ResourceSummary) -> "RunResource":
        """Return a resource of a run summary."""
        return cls(
            resource=f"{summary.type}[{summary.title}]",
            result=summary.status,
            drift=summary.corrective_change,
            file=summary.file,
            line=summary.line,
            containing_class=summary.containing_class,
        )

    @property
    def place(self) -> str:
        """Return file and line of the declaration; empty if unknown."""
        return place_of(self.file, self.line)

    @property
    def word(self) -> str:
        """Return the result in words."""
        return "corrected" if self.drift else self.result.replace("_", " ")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDetails:
    """What only a run summary has.

    Attributes:
        commit: The commit of the release, or empty.
        environment: Puppet's environment, or empty.
        noop: Whether the run changed nothing by request.
        corrective: Whether Puppet restored an earlier value.
        refusal: The class of the refusal; empty for a run.
        counts: Resources by result.
    """

    commit: str = ""
    environment: str = ""
    noop: bool = False
    corrective: bool = False
    refusal: str = ""
    counts: RunCounts = field(default_factory=RunCounts)


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
        failure_cause: The key of its failure cause, see `RunEnd.failure_key`, or empty.
        cause: What led to the run, or empty.
        seconds: Its duration; `None` without a run summary.
        details: The rest of its run summary; `None` without one.
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
    details: RunDetails | None = None
    resources: tuple[RunResource, ...] = ()
    more: int = 0

    @classmethod
    def of_end(cls, node: str, end: RunEnd, **more: Any) -> "RunResult":  # noqa: ANN401 - fields
        """Return the end of a run of a node; `more` has what only a run summary says."""
        return cls(
            node=node,
            run=end.run,
            at=end.finished_at,
            outcome=end.kind,
            release=end.release,
            reason=end.shown_cause.error or end.reason,
            failure_cause=end.failure_key,
            **more,
        )

    @classmethod
    def of_summary(cls, node: str, summary: RunSummary) -> "RunResult":
        """Return the end of a run in a run summary."""
        return cls.of_end(
            node,
            summary,
            cause=summary.cause,
            seconds=round(summary.finished_at - summary.started_at),
            details=RunDetails(
                commit=summary.commit or "",
                environment=summary.environment,
                noop=summary.noop,
                corrective=summary.corrective_change,
                refusal=summary.refusal or "",
                counts=summary.counts,
            ),
            resources=tuple(map(RunResource.of, summary.resources)),
            more=summary.more,
        )


def place_of(file: str, line: int | None) -> str:
    """Return a file and a line as one text; empty without a file."""
    return file if not file or line is None else f"{file}:{line}"
