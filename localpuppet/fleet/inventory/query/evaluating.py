"""Evaluate a query on the entries of nodes, and on the rows of a `RecordSource`.

- Rows come node by node, sorted by name; rows that `Select.order` does not order stay in that
  order.
- `QueryLimits` bounds the work and the memory of a query together with its subqueries. Rows are
  held in memory only to sort, group or watch them; a limit of rows keeps only as many.
- Whatever can be checked before the first row is checked first, and subqueries are evaluated.

Example: `Evaluation(reader).answer(select).rows`.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from typing import TypeVar

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.json_text import compact
from localpuppet.base.formats.strict_json import loads_again
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.query.budget import AnswerBudget, QueryBudget, QueryLimits
from localpuppet.fleet.inventory.query.comparing import sort_key
from localpuppet.fleet.inventory.query.conditions import key
from localpuppet.fleet.inventory.query.grouping import Groups
from localpuppet.fleet.inventory.query.records import CombinedRecords, RecordSource
from localpuppet.fleet.inventory.query.resource_scope import check_sources
from localpuppet.fleet.inventory.query.rows import NodeRows
from localpuppet.fleet.inventory.query.scanning import QueryScan, Scanner
from localpuppet.fleet.inventory.query.shaping import (
    MatchingRow,
    Order,
    RowShape,
    ShownRow,
    value_at,
    watched,
)
from localpuppet.fleet.inventory.query.tree import (
    Condition,
    Entity,
    Field,
    InSelect,
    Select,
    is_grouped,
)
from localpuppet.fleet.inventory.reading import InventoryReader

T = TypeVar("T")
# The limit of rows that wait until all are counted; more are read a second time.
MAX_PAGE = 1000
# The number of rows beyond a limit that are held before they are sorted and cut.
SPARE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryAnswer:
    """The result of a query.

    Attributes:
        texts: The rows of the result, each as JSON.
        names: The nodes with matching rows, sorted.
        watched: The part of the rows whose change is a new answer: without publication times, and
            with essential facts instead of a whole fact hash.
        owners: The node of each watched row; empty if rows are counted, or are of no node.
    """

    texts: list[str]
    names: list[str]
    watched: Sequence[dict[str, Json]]
    owners: Sequence[str] = ()

    @property
    def rows(self) -> list[dict[str, Json]]:
        """Return the rows of the result, each by column text."""
        return [loads_again(text.encode()) for text in self.texts]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientAnswer:
    """The answer to a client.

    Attributes:
        rows: The rows, each as JSON.
        total: The number of rows without `limit` and `offset`; `None` if it was not requested.
    """

    rows: Iterator[str]
    total: int | None


class Evaluation:
    """Evaluates one query with its subqueries.

    Args:
        reader: The entries, read once for the query and once for each subquery.
        records: The rows that entries do not have; `None` for none.
        limits: The limits of the query.

    Attributes:
        budget: What the query may still use.
    """

    def __init__(
        self,
        reader: InventoryReader,
        records: RecordSource | None = None,
        limits: QueryLimits | None = None,
    ) -> None:
        self._limits = limits or QueryLimits()
        self.budget = QueryBudget(self._limits)
        self._scanner = Scanner(reader, records or CombinedRecords(), subqueries=self)
        # By identity: a condition is not hashable.
        self._answered: dict[int, tuple[InSelect, set[tuple[str, ...]]]] = {}

    def nodes(self, where: Condition) -> Iterator[NodeRows]:
        """Yield the nodes with an entry that matches a condition on rows of `inventory`.

        Raises:
            InvalidInputError: As for `answer`.
        """
        for hit in self._scan(Select(entity=Entity.INVENTORY, where=where)).hits:
            if hit.node is not None:
                yield hit.node

    def answer(self, select: Select) -> QueryAnswer:
        """Evaluate a query as a whole.

        Raises:
            InvalidInputError: The query is unsupported, a regular expression is invalid, or a limit
                is exceeded.
            UnavailableError: A source cannot be read, or the deadline is over.
        """
        scan = self._scan(select)
        if is_grouped(select):
            names: set[str] = set()
            rows = _cut(select, self._grouped(select, scan, names))
            texts = [*map(compact, rows)]
            return QueryAnswer(texts=texts, names=sorted(names - {""}), watched=rows)
        room = AnswerBudget(self._limits.size)
        kept: list[ShownRow] = []
        for row in self._page(select, scan):
            room.take(row.text)
            kept.append(row)
            self.budget.check_rows(len(kept))
        owners = [row.name for row in kept if row.name]
        return QueryAnswer(
            texts=[row.text for row in kept],
            names=sorted(set(owners)),
            watched=[*map(watched, kept)],
            owners=owners,
        )

    def stream(self, select: Select, *, total: bool = False) -> ClientAnswer:
        """Evaluate a query of a client row by row.

        - A query without order, group and total holds no rows in memory.
        - The rows must be read in one thread: they come from one SQLite snapshot. Close the
          iterator to end a query early.
        - A query that cannot be answered raises an error, and never yields an empty answer.

        Args:
            select: The query.
            total: Whether to count all rows (`include_total`, the header `X-Records`).

        Raises:
            InvalidInputError: As for `answer`; also while the rows are read.
            UnavailableError: As for `answer`; also while the rows are read.
        """
        scan = self._scan(select, total=total)
        if is_grouped(select):
            rows = self._grouped(select, scan)
            texts = map(compact, _cut(select, rows))
            return ClientAnswer(rows=texts, total=len(rows) if total else None)
        if not total or scan.cut:
            shown = self._page(select, scan)
            return ClientAnswer(rows=(row.text for row in shown), total=scan.total)
        counted = _Counted(scan.hits)
        if select.limit is None or select.limit > MAX_PAGE:
            counted.finish()
            shown = self._page(select, self._scan(select))
        else:
            scan = QueryScan(hits=iter(counted), ordered=scan.ordered)
            shown = iter([*self._page(select, scan)])
            counted.finish()
        return ClientAnswer(rows=(row.text for row in shown), total=counted.count)

    def values(self, condition: InSelect) -> set[tuple[str, ...]]:
        """Return the rows of a subquery, each as a tuple with its values as JSON texts.

        Raises:
            InvalidInputError: The subquery has another number of fields, or as for `answer`.
        """
        if id(condition) not in self._answered:
            self._answered[id(condition)] = (condition, self._values(condition))
        return self._answered[id(condition)][1]

    def _scan(self, select: Select, *, total: bool = False) -> QueryScan:
        check_sources(select, self._scanner.entities)
        return self._scanner.scan(select, total=total)

    def _values(self, condition: InSelect) -> set[tuple[str, ...]]:
        select = condition.select
        fields = [column for column in select.columns or () if isinstance(column, Field)]
        if len(fields) != len(condition.fields):
            raise InvalidInputError(
                f"'in' compares {len(condition.fields)} fields with {len(fields)}",
                hint="extract as many fields as there are before 'in'",
            )
        rows: Iterable[tuple[str, ...]]
        scan = self._scanner.scan(select)
        if is_grouped(select):
            grouped = _cut(select, self._grouped(select, scan))
            rows = (tuple(key(row[field.text]) for field in fields) for row in grouped)
        elif select.limit is not None or select.offset:
            page = self._page(select, scan)
            rows = (tuple(key(row.shown[field.text]) for field in fields) for row in page)
        else:
            rows = (tuple(key(value_at(hit.row, field)) for field in fields) for hit in scan.hits)
        keys: set[tuple[str, ...]] = set()
        for row in rows:
            if row not in keys:
                self.budget.keep_value()
                keys.add(row)
        return keys

    def _grouped(
        self, select: Select, scan: QueryScan, names: set[str] | None = None
    ) -> list[dict[str, Json]]:
        """Return a row for each group; add the nodes of their rows to `names`."""
        groups = Groups(select, self.budget)
        for hit in scan.hits:
            times = hit.row.values["count"] if scan.counted else 1
            groups.add(hit.row, times=times if isinstance(times, int) else 1)
            if names is not None:
                names.add(str(hit.row.values.get("certname", "")))
        rows = [*groups.rows()]
        for order in reversed(select.order):
            text = order.field.text
            rows.sort(key=lambda row: sort_key(row.get(text)), reverse=order.descending)
        return rows

    def _page(self, select: Select, scan: QueryScan) -> Iterator[ShownRow]:
        """Yield the rows between offset and limit, in their order."""
        shape = RowShape(select, reports=Entity.NODES in self._scanner.entities)
        if scan.cut:
            return map(shape.shown, scan.hits)
        first = select.offset - scan.skipped
        end = None if select.limit is None else first + select.limit
        if scan.ordered or not select.order:
            return map(shape.shown, islice(scan.hits, first, end))
        return iter(self._first(shape, scan.hits, end)[first:])

    def _first(
        self, shape: RowShape, hits: Iterable[MatchingRow], end: int | None
    ) -> list[ShownRow]:
        """Return the first rows in their order; later ones are dropped as soon as possible."""
        kept: list[ShownRow] = []
        size, worst = 0, None
        by_order = attrgetter("order")
        for hit in hits:
            order: Order = shape.order(hit.row)
            if worst is not None and not order < worst:
                continue
            kept.append(shape.shown(hit, order))
            size += len(kept[-1].text) + 1
            is_full = self.budget.is_full(len(kept), size)
            if is_full or (end is not None and len(kept) >= 2 * end + SPARE):
                kept.sort(key=by_order)
                kept = kept[:end]
                worst = kept[-1].order if kept and len(kept) == end else None
                size = sum(len(row.text) + 1 for row in kept)
                if is_full:
                    self.budget.check_half(len(kept), size)
        kept.sort(key=by_order)
        return kept[:end]


class _Counted:
    """Rows that are counted while they are read.

    Args:
        hits: The rows.
    """

    def __init__(self, hits: Iterator[MatchingRow]) -> None:
        self._hits = hits
        self.count = 0

    def __iter__(self) -> Iterator[MatchingRow]:
        """Yield the rows."""
        for hit in self._hits:
            self.count += 1
            yield hit

    def finish(self) -> None:
        """Count the rows that were not read."""
        for _ in self:
            pass


def _cut(select: Select, rows: list[T]) -> list[T]:
    end = None if select.limit is None else select.offset + select.limit
    return rows[select.offset : end]
