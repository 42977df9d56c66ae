"""A run summary: what a node publishes about a finished or refused run.

- It has no values: titles of resources, places and the failure cause are those of
  `node.puppet.fault`, and the reason is a fixed sentence with them.
- Resources that Puppet did not touch are not listed. A summary lists the first `MAX_RESOURCES`:
  failed ones, then corrective changes, changes, changes that noop foresees, and skipped ones.
- A summary cannot be made with a text or a number beyond its limit, so one from another node has
  the limits of this module, too.
"""

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import TYPE_CHECKING

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import RunId
from localpuppet.base.formats.text import one_line
from localpuppet.fleet.records import to_record
from localpuppet.node.puppet.fault import FailureCause
from localpuppet.node.puppet.report import Resources
from localpuppet.node.puppet.resources import ResourceResult
from localpuppet.node.runs.reason import Category
from localpuppet.node.runs.run import Outcome, RefusalKind

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MAX_RESOURCES = 100
# Characters of each text; bytes of a whole summary, packed with zlib.
MAX_TEXT = 256
MAX_PACKED_SUMMARY = 8 * 1024
MAX_COUNT = 1_000_000
_ORDER = (
    ResourceResult.FAILED,
    ResourceResult.CHANGED,
    ResourceResult.WOULD_CHANGE,
    ResourceResult.SKIPPED,
)


def check_texts(value: "DataclassInstance") -> None:
    """Check that each text of a dataclass is one line of at most `MAX_TEXT` characters.

    Raises:
        InvalidInputError: A text is longer, or has a character that is not printable.
    """
    for name in _names(type(value)):
        text = getattr(value, name)
        if isinstance(text, str) and (len(text) > MAX_TEXT or not _is_line(text)):
            raise InvalidInputError(f"is no line of up to {MAX_TEXT} characters", where=name)


@cache
def _names(form: "type[DataclassInstance]") -> tuple[str, ...]:
    return tuple(field.name for field in fields(form))


def _is_line(text: str) -> bool:
    # The first check decides nearly all texts, in a tenth of the time.
    return (text.isascii() and text.isprintable()) or one_line(text) == text


def check_counts(*numbers: int) -> None:
    """Check that numbers are neither negative nor above `MAX_COUNT`.

    Raises:
        InvalidInputError: A number is.
    """
    if not all(0 <= number <= MAX_COUNT for number in numbers):
        raise InvalidInputError(f"has a number that is not from 0 to {MAX_COUNT}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceSummary:
    """A resource that failed, changed, would change or was skipped.

    Attributes:
        type: The resource's type.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCounts(Resources):
    """The numbers of resources by result.

    Attributes:
        corrective: Resources with a corrective change.
    """

    corrective: int = 0

    def __post_init__(self) -> None:
        check_counts(self.total, self.changed, self.failed, self.skipped, self.out_of_sync)
        check_counts(self.corrective)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """A finished run, or an apply that was refused before it had a record.

    Attributes:
        run: The run's id; for a refused apply an id that equal refusals in a row share.
        release: The release, `foo/tags/r1`; empty or `?` if unknown.
        commit: The release's commit; `None` if unknown.
        environment: Puppet's environment, or empty.
        cause: What led to the run, in one line.
        started_at: Seconds since 1970, UTC; of refusals in a row the first.
        finished_at: Seconds since 1970, UTC; of refusals in a row the last.
        outcome: How the run ended; `None` for a refused apply.
        category: Why it ended so.
        refusal: The class of the refusal; `None` for a run.
        times: How often it was refused in a row; 1 for a run.
        noop: Whether the run changed nothing by request.
        corrective_change: Whether Puppet restored an earlier value.
        reason: A fixed sentence, which may end with the failure cause, or empty.
        counts: Resources by result.
        resources: Resources that need attention, those that failed first.
        more: How many such resources are not listed.
        failure_cause: The failure cause, or `None`.
    """

    run: RunId
    release: str
    commit: str | None = None
    environment: str = ""
    cause: str
    started_at: float
    finished_at: float
    outcome: Outcome | None = None
    category: Category = Category.NONE
    refusal: RefusalKind | None = None
    times: int = 1
    noop: bool
    corrective_change: bool = False
    reason: str
    counts: RunCounts = RunCounts()
    resources: tuple[ResourceSummary, ...] = ()
    more: int = 0
    failure_cause: FailureCause | None = None

    def __post_init__(self) -> None:
        check_texts(self)
        check_counts(self.times, self.more)
        if self.failure_cause is not None:
            check_texts(self.failure_cause)
        if len(self.resources) > MAX_RESOURCES:
            raise InvalidInputError(f"has more than {MAX_RESOURCES} resources")
        if (self.outcome is None) == (self.refusal is None):
            raise InvalidInputError("has an outcome and a refusal, or neither")
        if self.started_at > self.finished_at:
            raise InvalidInputError("ended before it started")

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
        listed = tuple(sorted(resources, key=_rank)[:MAX_RESOURCES])
        while True:
            more = len(resources) - len(listed)
            summary = replace(self, resources=listed, more=min(more, MAX_COUNT))
            if not listed or packed_size(summary) <= MAX_PACKED_SUMMARY:
                return summary
            listed = listed[: len(listed) * 3 // 4]


def _rank(resource: ResourceSummary) -> tuple[int, bool]:
    return _ORDER.index(resource.status), not resource.corrective_change


def packed_size(record: object) -> int:
    """Return how many bytes a record takes alone, packed."""
    return len(zlib.compress(json.dumps(to_record(record)).encode()))
