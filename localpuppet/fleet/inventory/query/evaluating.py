"""Evaluate a query on the entries of nodes.

- Rows come node by node, sorted by name; rows that `Select.order` does not order stay in that
  order.
- A limit of rows bounds the work of a query. The size of the answer is limited while it grows
  (`AnswerBudget`), because a whole fleet does not fit into memory.

Example: `Evaluation(reader).answer(select).rows`.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.json_text import JsonText, compact, members
from localpuppet.base.formats.strict_json import loads_again
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.index import NODE
from localpuppet.fleet.inventory.query import conditions
from localpuppet.fleet.inventory.query.budget import (
    MAX_ANSWER,
    MAX_ROWS,
    MAX_ROWS_SEEN,
    AnswerBudget,
    too_large,
)
from localpuppet.fleet.inventory.query.columns import COLUMNS, OF_REPORTS, TIMES
from localpuppet.fleet.inventory.query.comparing import sort_key
from localpuppet.fleet.inventory.query.hints import fact_names, necessary
from localpuppet.fleet.inventory.query.resource_scope import scope_of
from localpuppet.fleet.inventory.query.rows import NodeRows, QueryRow, ResourceScope
from localpuppet.fleet.inventory.query.tree import Aggregate, Entity, Field, InSelect, Select
from localpuppet.fleet.inventory.reading import Equal, InventoryReader

T = TypeVar("T")
_FACTS = "facts"
_sorted_keys = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
Key = tuple[int, Any]
# The limit of node names in a query of the index; above it all entries are read.
MAX_NAMED = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryAnswer:
    """The result of a query.

    Attributes:
        texts: The rows of the result, each as a JSON object by column text.
        names: The nodes with matching rows, sorted.
        watched: The part of the rows whose change is a new answer: without publication times, and
            with essential facts instead of a whole fact hash.
        owners: The node of each watched row; empty if rows are counted.
    """

    texts: list[str]
    names: list[str]
    watched: Sequence[dict[str, Json]]
    owners: Sequence[str] = ()

    @property
    def rows(self) -> list[dict[str, Json]]:
        """Return the rows of the result, each by column text."""
        return [loads_again(text.encode()) for text in self.texts]


class MatchingRow(NamedTuple):
    """A matching row and its node; a named tuple, because there are many."""

    row: QueryRow
    node: NodeRows


class _Kept(NamedTuple):
    """The stored part of a matching row: its columns as JSON, and its sort keys."""

    name: str
    text: str
    watched: dict[str, Json]
    order: tuple[Key, ...]


class Evaluation:
    """Evaluates queries.

    Args:
        source: The entries, read once for the query and once for each subquery.
    """

    def __init__(self, source: InventoryReader) -> None:
        self._source = source
        self._seen = 0

    def answer(self, select: Select) -> QueryAnswer:
        """Evaluate a query.

        Raises:
            InvalidInputError: A regular expression is invalid, or a limit is exceeded.
        """
        if select.group_by or _counts(select):
            return self._counted(select)
        end = None if select.limit is None or select.order else select.offset + select.limit
        # Columns that are not selected are released at once.
        kept: list[_Kept] = []
        weight = 0
        for hit in islice(self.hits(select), end):
            kept.append(_kept(select, hit))
            weight += _weight(kept[-1])
            if weight > MAX_ANSWER or len(kept) > MAX_ROWS:
                kept, weight = _relieved(select, kept)
        kept = _cut(select, _sorted(select, kept))
        return QueryAnswer(
            texts=[one.text for one in kept],
            names=sorted({one.name for one in kept}),
            watched=[one.watched for one in kept],
            owners=[one.name for one in kept],
        )

    def _counted(self, select: Select) -> QueryAnswer:
        groups: dict[tuple[str, ...], dict[str, Json]] = {} if select.group_by else {(): {}}
        counts: Counter[tuple[str, ...]] = Counter()
        counted = next((one for one in select.columns or () if isinstance(one, Aggregate)), None)
        names = set()
        room = AnswerBudget()
        for hit in self.hits(select):
            names.add(str(hit.node.known.node))
            group = tuple(conditions.key(_value(hit.row, one)) for one in select.group_by)
            if group not in groups:
                shown = {one.text: _value(hit.row, one) for one in _columns(select, hit.row)}
                room.take(compact(shown))
                groups[group] = shown
            _check_rows(len(groups))
            if counted is not None:
                one = counted.field
                counts[group] += one is None or _value(hit.row, one) is not None
        rows: list[dict[str, Json]] = list(groups.values())
        if counted is not None:
            rows = [{**row, "count": counts[group]} for group, row in groups.items()]
        for order in reversed(select.order):
            rows.sort(key=_text_of(order.field.text), reverse=order.descending)
        rows = _cut(select, rows)
        return QueryAnswer(texts=list(map(compact, rows)), names=sorted(names), watched=rows)

    def hits(self, select: Select) -> Iterator[MatchingRow]:
        """Yield the matching rows before grouping, ordering and limits.

        Raises:
            InvalidInputError: As for `answer`.
        """
        holds = conditions.compiled(select.where, select.entity, self._values)
        names = fact_names(select.entity, select.where)
        scope = scope_of(select.where)
        for known in self._source.nodes(self._hint(select, scope)):
            node = NodeRows(known, self._source)
            for row in node.rows(select.entity, names, scope):
                self._seen += 1
                if self._seen > MAX_ROWS_SEEN:
                    raise InvalidInputError(
                        f"the query looks at more than {MAX_ROWS_SEEN} rows",
                        hint="ask for named facts, or for fewer nodes",
                    )
                if holds(row, node) is True:
                    yield MatchingRow(row, node)

    def _hint(self, select: Select, scope: ResourceScope) -> Equal:
        """Return the index hint: what every node of an answer must have."""
        equal = necessary(select)
        if select.entity is Entity.RESOURCES and not scope.classes and NODE not in equal:
            nodes = self._source.exporting(scope.kind)
            if len(nodes) <= MAX_NAMED:
                equal[NODE] = nodes
        return equal

    def _values(self, condition: InSelect) -> set[tuple[str, ...]]:
        """Return the rows of a subquery, one key per row."""
        select = condition.select
        rows = self.answer(select).rows
        texts = [column.text for column in select.columns or () if isinstance(column, Field)]
        if len(texts) != len(condition.fields):
            raise InvalidInputError(
                f"'in' compares {len(condition.fields)} fields with {len(texts)}",
                hint="extract as many fields as there are before 'in'",
            )
        return {tuple(conditions.key(row[text]) for text in texts) for row in rows}


def _relieved(select: Select, kept: list[_Kept]) -> tuple[list[_Kept], int]:
    """Drop rows that a limit excludes from a full answer; return the others and their size.

    Half of the size must be free afterwards; otherwise the next row would sort everything again.
    """
    end = None if select.limit is None else select.offset + select.limit
    first = _sorted(select, kept)[:end]
    weight = sum(map(_weight, first))
    if 2 * len(first) > MAX_ROWS:
        _check_rows(len(kept))
    if 2 * weight > MAX_ANSWER:
        raise too_large(MAX_ANSWER)
    return first, weight


def _weight(one: _Kept) -> int:
    return len(one.text) + 1


def _sorted(select: Select, kept: list[_Kept]) -> list[_Kept]:
    for index, one in reversed(list(enumerate(select.order))):
        kept.sort(key=_order_of(index), reverse=one.descending)
    return kept


def _check_rows(count: int) -> None:
    if count > MAX_ROWS:
        raise InvalidInputError(
            f"the answer has more than {MAX_ROWS} rows", hint="ask for fewer, or count them"
        )


def _counts(select: Select) -> bool:
    return any(isinstance(column, Aggregate) for column in select.columns or ())


def _order_of(index: int) -> Callable[[_Kept], Key]:
    return lambda row: row.order[index]


def _text_of(text: str) -> Callable[[dict[str, Json]], Key]:
    return lambda row: sort_key(row.get(text))


def _kept(select: Select, hit: MatchingRow) -> _Kept:
    shown: dict[str, Json] = {}
    whole = []
    columns = _columns(select, hit.row)
    for one in columns:
        if one.column == _FACTS and not one.path:
            whole.append(one.text)
        else:
            shown[one.text] = _value(hit.row, one)
    text = compact(shown)
    watched = shown
    if not TIMES.isdisjoint(shown):
        watched = {name: value for name, value in shown.items() if name not in TIMES}
    if whole:
        # Whole facts are large: they are written separately, and seldom parsed.
        facts = JsonText(hit.node.facts.text())
        text = members({name: shown.get(name, facts) for name in (one.text for one in columns)})
        watched = {**watched, _FACTS: hit.node.facts.essential()}
    return _Kept(
        name=str(hit.node.known.node),
        text=text,
        watched=watched,
        order=tuple(sort_key(_value(hit.row, one.field)) for one in select.order),
    )


def _columns(select: Select, row: QueryRow) -> list[Field]:
    if select.columns is not None:
        return [column for column in select.columns if type(column) is Field]
    # A class has only its name, even if exported resources have more columns.
    has = row.values if select.entity is Entity.RESOURCES else COLUMNS[select.entity]
    return [Field(column=column, text=column) for column in has if column not in OF_REPORTS]


def _value(row: QueryRow, one: Field) -> Json:
    return row.at(one.column, conditions.exact(one.path))


def _cut(select: Select, rows: list[T]) -> list[T]:
    end = None if select.limit is None else select.offset + select.limit
    return rows[select.offset : end]


def canonical(value: object) -> bytes:
    """Return the canonical bytes of a value, for a digest."""
    return _sorted_keys(value).encode("ascii")
