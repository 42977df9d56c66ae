"""The ports of the API: what it serves besides the rows of queries."""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass

from localpuppet.base.formats.values import Json

# Rows of a query as JSON texts → rows of the answer as JSON texts.
RowShape = Callable[[Iterator[str]], Iterator[str]]
# Returns the MBeans by name, each with its attributes: `{"Value": 3}`.
ReadMetrics = Callable[[], Awaitable[Mapping[str, Mapping[str, Json]]]]
# Returns a part of the report with a hash, `logs` or `metrics`; `None` if no report has it. Raises
# `UnavailableError` if the node of the report cannot be reached.
ReportDetails = Callable[[str, str], Awaitable[Json]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSources:
    """What the API serves besides the rows of queries.

    Attributes:
        details: Returns parts of reports; `None` without reports.
        metrics: Returns metrics; `None` without any.
    """

    details: ReportDetails | None = None
    metrics: ReadMetrics | None = None
