"""Shape matching rows: the columns of a result, its JSON text and its sort keys."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from localpuppet.base.formats.json_text import JsonText, compact, members
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.query.columns import COLUMNS, OF_REPORTS, TIMES
from localpuppet.fleet.inventory.query.comparing import sort_key
from localpuppet.fleet.inventory.query.conditions import exact
from localpuppet.fleet.inventory.query.rows import NodeRows, QueryRow
from localpuppet.fleet.inventory.query.tree import Entity, Field, Select

_FACTS = "facts"
Order = tuple[Any, ...]


class MatchingRow(NamedTuple):
    """A matching row; a named tuple, because there are many.

    Attributes:
        row: The row.
        node: The rows of its node; `None` if the row does not come from an entry.
    """

    row: QueryRow
    node: NodeRows | None


class ShownRow(NamedTuple):
    """The stored part of a matching row.

    Attributes:
        name: Its node.
        text: Its columns as JSON.
        shown: Its columns, with essential facts instead of a whole fact hash.
        order: Its sort keys.
    """

    name: str
    text: str
    shown: dict[str, Json]
    order: Order


@dataclass(frozen=True, slots=True)
class _Descending:
    """A sort key in the opposite direction."""

    key: tuple[int, Any]

    def __lt__(self, other: "_Descending") -> bool:
        return other.key < self.key


class RowShape:
    """The columns and the order of a query's rows.

    Args:
        select: The query.
        reports: Whether rows of `nodes` have the columns of reports.
    """

    def __init__(self, select: Select, *, reports: bool) -> None:
        self._select = select
        self._columns: list[Field] | None = None
        if select.columns is not None:
            self._columns = [column for column in select.columns if type(column) is Field]
        elif select.entity is not Entity.RESOURCES:
            has = COLUMNS[select.entity]
            if select.entity is Entity.NODES and not reports:
                has = tuple(column for column in has if column not in OF_REPORTS)
            self._columns = _plain(has)

    def shown(self, hit: MatchingRow, order: Order = ()) -> ShownRow:
        """Return the part of a row that a result needs.

        Args:
            hit: The row.
            order: Its sort keys, if it is to be sorted.
        """
        row = hit.row
        name = str(row.values.get("certname", ""))
        # A class in an entry has only its name, even if exported resources have more columns.
        columns = _plain(row.values) if self._columns is None else self._columns
        if self._select.entity is Entity.FACT_NAMES:
            value = row.at("name")
            return ShownRow(name, compact(value), {"name": value}, order)
        if hit.node is None or all(map(_is_small, columns)):
            shown = {one.text: value_at(row, one) for one in columns}
            return ShownRow(name, compact(shown), shown, order)
        # Whole facts are large: they are written separately.
        whole = JsonText(hit.node.facts.text())
        shown = {one.text: value_at(row, one) for one in columns if _is_small(one)}
        text = members({one.text: shown.get(one.text, whole) for one in columns})
        shown[_FACTS] = hit.node.facts.essential()
        return ShownRow(name, text, shown, order)

    def order(self, row: QueryRow) -> Order:
        """Return the sort keys of a row, one for each criterion."""
        keys = [(sort_key(value_at(row, one.field)), one.descending) for one in self._select.order]
        return tuple(_Descending(key) if descending else key for key, descending in keys)


def _plain(names: Iterable[str]) -> list[Field]:
    return [Field(column=name, text=name) for name in names]


def _is_small(one: Field) -> bool:
    return one.column != _FACTS or bool(one.path)


def watched(one: ShownRow) -> dict[str, Json]:
    """Return the part of a row whose change is a new answer: its columns without times."""
    if TIMES.isdisjoint(one.shown):
        return one.shown
    return {name: value for name, value in one.shown.items() if name not in TIMES}


def value_at(row: QueryRow, field: Field) -> Json:
    """Return the value of a row at a field without patterns."""
    return row.at(field.column, exact(field.path))
