"""A run summary: what a node publishes about a finished or refused run.

- Resources that Puppet did not touch are not listed. A summary lists the first
  `MAX_SUMMARY_RESOURCES`: failed ones, then corrective changes, changes, changes that noop
  foresees, and skipped ones.
- It has no values, and the limits of a run's end.
"""

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.converter import to_record
from localpuppet.base.value import Value
from localpuppet.fleet.bus.bus_limits import (
    MAX_PACKED_SUMMARY,
    MAX_RUN_COUNT,
    MAX_SUMMARY_RESOURCES,
)
from localpuppet.fleet.inventory.run_end import RunEnd, check_counts, check_texts
from localpuppet.node.puppet.report import Resources
from localpuppet.node.puppet.resources import ResourceResult
from localpuppet.node.runs.reason import Category
from localpuppet.node.runs.run import Outcome

_ORDER = (
    ResourceResult.FAILED,
    ResourceResult.CHANGED,
    ResourceResult.WOULD_CHANGE,
    ResourceResult.SKIPPED,
)


class ResourceSummary(Value):
    """A resource that failed, changed, would change or was skipped.

    Attributes:
        title: The title if it is a plain name or path, else `…`.
        status: The result; never `unchanged`.
        file: The file that declares it, from the module's directory on; empty if unknown.
        line: The line in the file; `None` if unknown.
        corrective_change: Whether Puppet restored an earlier value.
        containing_class: The innermost class that contains it; empty if unknown.
    """

    type: str
    title: str
    status: ResourceResult
    file: str
    line: int | None
    corrective_change: bool
    containing_class: str = ""

    def __post_init__(self) -> None:
        check_texts(self)
        check_counts(self.line or 0)
        if self.status is ResourceResult.UNCHANGED:
            raise InvalidInputError("a resource that is unchanged has no summary")

    @property
    def resource(self) -> str:
        """Type and title; empty if unknown."""
        return f"{self.type}[{self.title}]" if self.type else ""

    @property
    def place(self) -> str:
        """File and line of the declaration; empty if unknown."""
        return place_of(self.file, self.line)

    @property
    def word(self) -> str:
        """The result in words."""
        return "corrected" if self.corrective_change else self.status.replace("_", " ")


def place_of(file: str, line: int | None) -> str:
    """Return a file and a line as one text; empty without a file."""
    return file if not file or line is None else f"{file}:{line}"


class RunCounts(Resources):
    """The numbers of resources by result."""

    corrective: int = 0

    def __post_init__(self) -> None:
        check_counts(self.total, self.changed, self.failed, self.skipped, self.out_of_sync)
        check_counts(self.corrective)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary(RunEnd):
    """A finished run, or an apply that was refused before it had a record.

    Attributes:
        commit: The release's commit; `None` if unknown.
        environment: Puppet's environment, or empty.
        cause: What led to the run, in one line.
        resources: Resources that need attention, those that failed first.
        more: How many such resources are not listed.
    """

    commit: str | None = None
    environment: str = ""
    cause: str
    counts: RunCounts = RunCounts()
    resources: tuple[ResourceSummary, ...] = ()
    more: int = 0

    def __post_init__(self) -> None:
        RunEnd.__post_init__(self)  # `super()` has no class in a dataclass with slots
        check_counts(self.more)
        if len(self.resources) > MAX_SUMMARY_RESOURCES:
            raise InvalidInputError(f"has more than {MAX_SUMMARY_RESOURCES} resources")

    @classmethod
    def of(cls, end: RunEnd, **more: Any) -> "RunSummary":  # noqa: ANN401 - the other fields
        """Return the summary of a run that ended so."""
        return cls(**_end(end), **more)

    @property
    def end(self) -> RunEnd:
        """What presence and lists of nodes have of it."""
        return RunEnd(**_end(self))

    @property
    def at(self) -> float:
        """Return when the run ended, which decides its day."""
        return self.finished_at

    @property
    def identity(self) -> str:
        """Return what a later version of the same record has in common with it."""
        return self.run

    @property
    def is_expendable(self) -> bool:
        """Whether a full day drops this record first: nothing changed, and nothing was to."""
        return self.outcome is Outcome.UNCHANGED and self.category is Category.NONE

    def within_limits(self, resources: Sequence[ResourceSummary]) -> "RunSummary":
        """Return this summary with as many of the resources as the limits allow.

        Args:
            resources: All resources that need attention, in any order.
        """
        listed = tuple(sorted(resources, key=_rank)[:MAX_SUMMARY_RESOURCES])
        while True:
            more = len(resources) - len(listed)
            summary = replace(self, resources=listed, more=min(more, MAX_RUN_COUNT))
            if not listed or packed_size(summary) <= MAX_PACKED_SUMMARY:
                return summary
            listed = listed[: len(listed) * 3 // 4]


def _end(end: RunEnd) -> dict[str, Any]:
    return {field.name: getattr(end, field.name) for field in fields(RunEnd)}


def _rank(resource: ResourceSummary) -> tuple[int, bool]:
    return _ORDER.index(resource.status), not resource.corrective_change


def packed_size(record: object) -> int:
    """Return how many bytes a record takes alone, packed."""
    return len(zlib.compress(json.dumps(to_record(record)).encode()))
