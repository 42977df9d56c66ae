"""The limits of one query with all its subqueries, and the deadline."""

from collections.abc import Callable
from dataclasses import dataclass

from localpuppet.base.errors import InvalidInputError, UnavailableError

MAX_ROWS_SEEN = 5_000_000
MAX_ROWS = 200_000
# The limit of an answer as JSON, which localpuppet and Ruby hold in memory at once.
MAX_ANSWER = 32 * 1024 * 1024
# The number of rows, and of compared values, between two checks of the deadline.
CHECKED_EVERY = 256


class QueryDeadlineError(UnavailableError):
    """A query took longer than its deadline."""


def unlimited() -> None:
    """Check no deadline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryLimits:
    """The limits of one query.

    Attributes:
        seen: The limit of rows that it looks at, in subqueries too.
        kept: The limit of rows that it holds in memory, for sorting, grouping and subqueries.
        size: The limit in characters of the rows that it holds in memory.
        check: Ends a query that is too late: called every `CHECKED_EVERY` rows or compared values,
            it raises `QueryDeadlineError`.
    """

    seen: int = MAX_ROWS_SEEN
    kept: int = MAX_ROWS
    size: int = MAX_ANSWER
    check: Callable[[], None] = unlimited


class QueryBudget:
    """What a query may still use.

    Args:
        limits: The limits of the query.
    """

    def __init__(self, limits: QueryLimits) -> None:
        self._limits = limits
        self._seen = 0
        self._values = 0
        self._compared = 0

    def compare(self) -> None:
        """Count a value that a condition compares: one row may have very many.

        Raises:
            QueryDeadlineError: The deadline is over.
        """
        self._compared += 1
        if self._compared % CHECKED_EVERY == 0:
            self._limits.check()

    def see(self) -> None:
        """Count a row that the query looks at.

        Raises:
            InvalidInputError: These are too many.
            QueryDeadlineError: The deadline is over.
        """
        self._seen += 1
        if self._seen % CHECKED_EVERY == 0:
            self._limits.check()
        if self._seen > self._limits.seen:
            raise InvalidInputError(
                f"the query looks at more than {self._limits.seen} rows",
                hint="ask for named facts, or for fewer nodes",
            )

    def keep_value(self) -> None:
        """Count a value that a subquery holds in memory.

        Raises:
            InvalidInputError: These are too many.
        """
        self._values += 1
        self.check_rows(self._values)

    def check_rows(self, count: int) -> None:
        """Check the number of rows in memory.

        Raises:
            InvalidInputError: These are too many.
        """
        if count > self._limits.kept:
            raise InvalidInputError(
                f"the answer has more than {self._limits.kept} rows",
                hint="ask for fewer, or count them",
            )

    def is_full(self, count: int, size: int) -> bool:
        """Return whether rows in memory exceed a limit.

        Args:
            count: Their number.
            size: The characters of their texts.
        """
        return count > self._limits.kept or size > self._limits.size

    def check_half(self, count: int, size: int) -> None:
        """Check that rows leave half of the memory for others.

        Raises:
            InvalidInputError: They do not.
        """
        if 2 * count > self._limits.kept:
            self.check_rows(2 * count)
        if 2 * size > self._limits.size:
            raise too_large(self._limits.size)


class AnswerBudget:
    """The remaining size of an answer as JSON.

    Args:
        most: The limit in characters.
    """

    def __init__(self, most: int = MAX_ANSWER) -> None:
        self._most = self._left = most

    def take(self, text: str) -> str:
        """Return a JSON part of the answer after counting its size.

        Raises:
            InvalidInputError: The answer is too large.
        """
        self._left -= len(text) + 1
        if self._left < 0:
            raise too_large(self._most)
        return text


def too_large(limit: int) -> InvalidInputError:
    """Return the error for an answer that is too large."""
    return InvalidInputError(
        f"the answer has more than {limit // 1048576} MiB",
        hint="ask for named facts, or for fewer nodes",
    )
