"""Rows of reports and catalogs in memory."""

from collections.abc import Mapping, Sequence

from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.query.compiling import ALIASES, OF_ENTRY, Relation
from localpuppet.fleet.inventory.query.records import QueryContext, columns_of, filled
from localpuppet.fleet.inventory.query.tree import OF_REPORTS, Entity, Select


class MemoryRecords:
    """Rows in lists: a `RecordSource` that writes all of them into a table."""

    def __init__(self, listed: Mapping[Entity, Sequence[Mapping[str, Json]]]) -> None:
        self.listed = listed
        self.allowed: list[Mapping[str, object]] = []

    @property
    def entities(self) -> Sequence[Entity]:
        return list(self.listed)

    def relation(self, select: Select, question: QueryContext) -> Relation:
        used = columns_of(select)
        self.allowed.append({name: question.allowed(select, name) for name in sorted(used)})
        if select.entity is not Entity.NODES:
            columns = {ALIASES.get(name, name) for name in used}
            return filled(self.listed[select.entity], columns, question)
        rows = filled(self.listed[select.entity], ("certname", *OF_REPORTS), question).sql
        reported = ", ".join(OF_REPORTS)
        return Relation(
            sql=f"(SELECT {OF_ENTRY}, {reported} FROM live LEFT JOIN {rows} USING (certname)"  # noqa: S608
            " UNION ALL SELECT certname, NULL, NULL, NULL, NULL, NULL, NULL,"
            f" {reported} FROM {rows} WHERE certname NOT IN (SELECT certname FROM live))",
            natural=("r.certname",),
        )
