"""Group matching rows, and evaluate functions over the rows of each group."""

import math
from collections.abc import Iterator

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.json_text import compact
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.query.budget import AnswerBudget, QueryBudget
from localpuppet.fleet.inventory.query.comparing import is_plain_number, sort_key
from localpuppet.fleet.inventory.query.conditions import key
from localpuppet.fleet.inventory.query.rows import QueryRow
from localpuppet.fleet.inventory.query.shaping import value_at
from localpuppet.fleet.inventory.query.tree import Aggregate, AggregateFunction, Field, Select


class _Accumulator:
    """The result of one function over the rows so far.

    Args:
        aggregate: The function.
    """

    __slots__ = ("_extreme", "_field", "_function", "_sum", "count")

    def __init__(self, aggregate: Aggregate) -> None:
        self._function = aggregate.function
        self._field = aggregate.field
        self.count = 0
        self._sum: int | float = 0
        self._extreme: Json = None

    def add(self, row: QueryRow, times: int) -> None:
        """Add a row; one without a value is not counted, unless the function counts rows."""
        function = self._function
        value = None if self._field is None else value_at(row, self._field)
        if function is AggregateFunction.COUNT:
            self.count += times if self._field is None or value is not None else 0
        elif function in (AggregateFunction.SUM, AggregateFunction.AVERAGE):
            if is_plain_number(value):
                self.count += 1
                self._sum += value
        elif is_plain_number(value) or isinstance(value, str):
            is_less = sort_key(value) < sort_key(self._extreme)
            if self._extreme is None or is_less is (function is AggregateFunction.LEAST):
                self._extreme = value

    def result(self) -> Json:
        """Return the result; `None` without values.

        Raises:
            InvalidInputError: A sum exceeds the largest number.
        """
        if self._function is AggregateFunction.COUNT:
            return self.count
        if self._function not in (AggregateFunction.SUM, AggregateFunction.AVERAGE):
            return self._extreme
        if not math.isfinite(self._sum):
            raise InvalidInputError(f"{self._function.value}() exceeds the largest number")
        if self._function is AggregateFunction.SUM:
            return self._sum if self.count else None
        return self._sum / self.count if self.count else None


class Groups:
    """The groups of a query's rows, in the order of their first rows.

    Args:
        select: The query.
        budget: The limits.
    """

    def __init__(self, select: Select, budget: QueryBudget) -> None:
        self._select = select
        self._budget = budget
        self._room = AnswerBudget()
        self._fields = [column for column in select.columns or () if isinstance(column, Field)]
        self._aggregates = [
            column for column in select.columns or () if isinstance(column, Aggregate)
        ]
        self._groups: dict[tuple[str, ...], tuple[dict[str, Json], list[_Accumulator]]] = {}
        if not select.group_by:
            self._groups[()] = self._group({})

    def add(self, row: QueryRow, *, times: int = 1) -> None:
        """Add a row to its group.

        Args:
            row: The row.
            times: The number of rows that it represents.

        Raises:
            InvalidInputError: There are too many groups.
        """
        named = tuple(key(value_at(row, field)) for field in self._select.group_by)
        if named not in self._groups:
            shown = {field.text: value_at(row, field) for field in self._fields}
            self._room.take(compact(shown))
            self._groups[named] = self._group(shown)
            self._budget.check_rows(len(self._groups))
        for group in self._groups[named][1]:
            group.add(row, times)

    def rows(self) -> Iterator[dict[str, Json]]:
        """Yield a row for each group."""
        for shown, results in self._groups.values():
            named = zip(self._aggregates, results, strict=True)
            yield {**shown, **{item.function.value: result.result() for item, result in named}}

    def _group(self, shown: dict[str, Json]) -> tuple[dict[str, Json], list[_Accumulator]]:
        return shown, [_Accumulator(aggregate) for aggregate in self._aggregates]
