"""The ports of the API: what it serves besides the rows of queries."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from localpuppet.base.formats.values import Json

# Rows of a query as JSON texts → rows of the answer as JSON texts.
RowShape = Callable[[Iterator[str]], Iterator[str]]
# Returns the MBeans by name, each with its attributes: `{"Value": 3}`.
ReadMetrics = Callable[[], Awaitable[Mapping[str, Mapping[str, Json]]]]


class ReportDetails(Protocol):
    """The parts of a report that only its node has."""

    async def __call__(self, report: str, part: str) -> Json:
        """Return a part of a report; `None` if no report has the hash.

        Args:
            report: The hash of the report.
            part: `logs` or `metrics`.

        Raises:
            UnavailableError: The node cannot be reached.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSources:
    """What the API serves besides the rows of queries.

    Attributes:
        details: Returns parts of reports; `None` without reports.
        metrics: Returns metrics; `None` without any.
    """

    details: ReportDetails | None = None
    metrics: ReadMetrics | None = None
