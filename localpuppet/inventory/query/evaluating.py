"""Answers a question from the entries of nodes.

Owns: what conditions mean for rows, and how rows become a result. Refuses to know: languages, and
where entries are kept.

- Rows come node by node, sorted by name; what `Select.order` leaves open stays in that order.
- A limit of rows that are looked at bounds the work of one question, whatever it says.

Example: `Evaluation(reader).answer(select).rows`.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from localpuppet.errors import InvalidInputError
from localpuppet.formats.values import Json
from localpuppet.inventory.query import conditions
from localpuppet.inventory.query.comparing import sort_key
from localpuppet.inventory.query.hints import fact_names, necessary
from localpuppet.inventory.query.rows import COLUMNS, TIMES, NodeRows, Row
from localpuppet.inventory.query.tree import Count, Field, InSelect, Order, Select
from localpuppet.inventory.reading import InventoryReader

T = TypeVar("T")
MAX_ROWS_SEEN = 5_000_000
MAX_ROWS = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a question found.

    Attributes:
        rows: The result, each row by the text of its columns.
        names: The nodes whose rows counted, sorted.
        watched: What of the rows makes the answer another one: without the times at which things
            were published, and with the essential facts in the place of a whole fact hash.
    """

    rows: list[dict[str, Json]]
    names: list[str]
    watched: list[Json]


@dataclass(frozen=True, slots=True)
class Hit:
    """A row that counts, and its node."""

    row: Row
    node: NodeRows


class Evaluation:
    """Answers questions.

    Args:
        source: The entries; read once for each question in the question.
    """

    def __init__(self, source: InventoryReader) -> None:
        self._source = source
        self._seen = 0

    def answer(self, select: Select) -> Answer:
        """Return what a question finds.

        Raises:
            InvalidInputError: A regular expression is refused, or the work is too much.
        """
        hits = list(self.hits(select))
        names = sorted({str(hit.node.entry.node) for hit in hits})
        if select.group_by or _counts(select):
            rows = _grouped(select, [hit.row for hit in hits])
            rows = _cut(select, _sorted(select.order, rows, _of_result))
            return Answer(rows=rows, names=names, watched=list(rows))
        hits = _cut(select, _sorted(select.order, hits, _of_hit))
        return Answer(
            rows=[_shown(select, hit.row) for hit in hits],
            names=sorted({str(hit.node.entry.node) for hit in hits}),
            watched=[_watched(select, hit) for hit in hits],
        )

    def hits(self, select: Select) -> Iterator[Hit]:
        """Yield the rows that count, whatever the clauses say.

        Raises:
            InvalidInputError: As for `answer`.
        """
        holds = conditions.compiled(select.where, select.entity, self._values)
        names = fact_names(select.entity, select.where)
        found = 0
        for entry in self._source.entries(necessary(select)):
            node = NodeRows.of(entry)
            for row in node.rows(select.entity, names):
                self._seen += 1
                if self._seen > MAX_ROWS_SEEN:
                    raise InvalidInputError(
                        f"the query looks at more than {MAX_ROWS_SEEN} rows",
                        hint="ask for named facts, or for fewer nodes",
                    )
                if holds(row, node) is True:
                    found += 1
                    if found > MAX_ROWS:
                        raise InvalidInputError(
                            f"the answer has more than {MAX_ROWS} rows", hint="ask for fewer"
                        )
                    yield Hit(row, node)

    def _values(self, condition: InSelect) -> set[tuple[str, ...]]:
        """Return what a question inside of the question finds, each row as one key."""
        select = condition.select
        rows = self.answer(select).rows
        texts = [column.text for column in select.columns or () if isinstance(column, Field)]
        if len(texts) != len(condition.fields):
            raise InvalidInputError(
                f"'in' compares {len(condition.fields)} fields with {len(texts)}",
                hint="extract as many fields as stand before 'in'",
            )
        return {tuple(conditions.key(row[text]) for text in texts) for row in rows}


def _counts(select: Select) -> bool:
    return any(isinstance(column, Count) for column in select.columns or ())


def _shown(select: Select, row: Row) -> dict[str, Json]:
    if select.columns is None:
        return {column: row.at(column) for column in COLUMNS[select.entity]}
    fields = [column for column in select.columns if isinstance(column, Field)]
    return {one.text: _value(row, one) for one in fields}


def _watched(select: Select, hit: Hit) -> Json:
    shown = [
        Field(column=column, text=column)
        for column in COLUMNS[select.entity]
        if select.columns is None
    ]
    shown += [column for column in select.columns or () if isinstance(column, Field)]
    values: dict[str, Json] = {}
    for one in shown:
        if one.column == "facts" and not one.path:
            values[one.text] = hit.node.facts.essential()
        elif one.column not in TIMES:
            values[one.text] = _value(hit.row, one)
    return values


def _value(row: Row, one: Field) -> Json:
    return row.at(one.column, conditions.exact(one.path))


def _grouped(select: Select, rows: Iterable[Row]) -> list[dict[str, Json]]:
    groups: dict[tuple[str, ...], list[Row]] = {} if select.group_by else {(): []}
    for row in rows:
        group = tuple(conditions.key(_value(row, one)) for one in select.group_by)
        groups.setdefault(group, []).append(row)
    found = []
    for members in groups.values():
        shown: dict[str, Json] = {}
        for column in select.columns or ():
            if isinstance(column, Field):
                shown[column.text] = _value(members[0], column)
            else:
                shown["count"] = _count(column, members)
        found.append(shown)
    return found


def _count(count: Count, rows: list[Row]) -> int:
    if count.field is None:
        return len(rows)
    return sum(1 for row in rows if _value(row, count.field) is not None)


def _sorted(order: tuple[Order, ...], rows: list[T], value: Callable[[T, Field], Json]) -> list[T]:
    for one in reversed(order):
        rows = sorted(rows, key=lambda row: sort_key(value(row, one.field)), reverse=one.descending)
    return rows


def _of_hit(hit: Hit, one: Field) -> Json:
    return _value(hit.row, one)


def _of_result(row: dict[str, Json], one: Field) -> Json:
    return row.get(one.text)


def _cut(select: Select, rows: list[T]) -> list[T]:
    end = None if select.limit is None else select.offset + select.limit
    return rows[select.offset : end]


def canonical(value: Json) -> bytes:
    """Return one form of a value, to be digested."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")
