"""Shape matching rows: the columns of a result, its JSON text and its sort keys."""

from collections.abc import Mapping, Sequence
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
Path = tuple[str | int, ...]


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


_UNKNOWN: Mapping[str, Json] = dict.fromkeys(("tags", "file", "line", "parameters"))


class RowShape:
    """The columns and the order of a query's rows.

    Args:
        select: The query.
        reports: Whether rows of `nodes` have the columns of reports.
    """

    def __init__(self, select: Select, *, reports: bool) -> None:
        self._entity = select.entity
        self._order = [
            (*_place(criterion.field), criterion.descending) for criterion in select.order
        ]
        # `None` if rows have different columns: a class in an entry has only its name, so its other
        # columns are null. Only catalogs have `resource`.
        self._whole: Sequence[str] | None = None
        self._places: list[tuple[str, str, Path]] = []
        self._has_facts = select.columns is None and select.entity is Entity.INVENTORY
        if select.columns is not None:
            fields = [column for column in select.columns if type(column) is Field]
            self._has_facts = any(field.column == _FACTS and not field.path for field in fields)
            self._places = [(field.text, *_place(field)) for field in fields]
            if all(text == column for text, column, _ in self._places):
                self._whole = [column for _, column, _ in self._places]
        elif select.entity is not Entity.RESOURCES:
            has = COLUMNS[select.entity]
            reported = () if reports or select.entity is not Entity.NODES else OF_REPORTS
            self._whole = [column for column in has if column not in reported]

    def shown(self, hit: MatchingRow, order: Order = ()) -> ShownRow:
        """Return the part of a row that a result needs.

        Args:
            hit: The row.
            order: Its sort keys, if it is to be sorted.
        """
        row = hit.row
        name = str(row.values.get("certname", ""))
        if self._has_facts and hit.node is not None and self._entity is Entity.INVENTORY:
            return self._with_facts(row, hit.node, name, order)
        if self._whole is not None:
            shown = row.columns(self._whole)
        elif self._places:
            shown = {text: row.at(column, path) for text, column, path in self._places}
        else:
            shown = {**_UNKNOWN, **row.values}
        is_name = self._entity is Entity.FACT_NAMES
        return ShownRow(name, compact(shown["name"] if is_name else shown), shown, order)

    def order(self, row: QueryRow) -> Order:
        """Return the sort keys of a row, one for each criterion."""
        keys = ((sort_key(row.at(column, path)), down) for column, path, down in self._order)
        return tuple(_Descending(key) if down else key for key, down in keys)

    def _with_facts(self, row: QueryRow, node: NodeRows, name: str, order: Order) -> ShownRow:
        """Return a row with all facts of its node: they are large, and written separately."""
        places = self._places or [(column, column, ()) for column in self._whole or ()]
        whole = JsonText(node.facts.text())
        shown: dict[str, Json] = {
            text: row.at(column, path) for text, column, path in places if column != _FACTS or path
        }
        written = members({text: shown.get(text, whole) for text, _, _ in places})
        shown[_FACTS] = node.facts.essential()
        return ShownRow(name, written, shown, order)


def _place(field: Field) -> tuple[str, Path]:
    return field.column, exact(field.path)


def watched(row: ShownRow) -> dict[str, Json]:
    """Return the part of a row whose change is a new answer: its columns without times."""
    if TIMES.isdisjoint(row.shown):
        return row.shown
    return {name: value for name, value in row.shown.items() if name not in TIMES}


def value_at(row: QueryRow, field: Field) -> Json:
    """Return the value of a row at a field without patterns."""
    return row.at(field.column, exact(field.path))
