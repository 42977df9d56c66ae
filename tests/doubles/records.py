"""Rows of reports and catalogs in memory."""

from collections.abc import Mapping, Sequence

from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.query.records import RecordHint, RecordRows
from localpuppet.fleet.inventory.query.tree import Entity


class MemoryRecords:
    """Rows in lists: a `RecordSource` that returns all of them.

    Args:
        listed: The rows by entity.
        cuts: Whether it applies an exact hint: condition, offset, limit, total, and counts.
    """

    def __init__(
        self, listed: Mapping[Entity, Sequence[Mapping[str, Json]]], *, cuts: bool = False
    ) -> None:
        self.listed = listed
        self.cuts = cuts
        self.hints: list[RecordHint] = []

    @property
    def entities(self) -> Sequence[Entity]:
        return list(self.listed)

    def rows(self, entity: Entity, hint: RecordHint) -> RecordRows:
        self.hints.append(hint)
        rows = self.listed[entity]
        others = hint.order or hint.since or hint.until or hint.further
        if not self.cuts or not hint.exact or others:
            return RecordRows(rows=rows)
        matching = [
            row
            for row in rows
            if all(row[column] in values for column, values in hint.equal.items())
        ]
        if hint.count_by is not None:
            groups = [{column: row[column] for column in hint.count_by} for row in matching]
            return RecordRows(rows=[{**group, "count": 1} for group in groups], counted=True)
        end = None if hint.limit is None else hint.offset + hint.limit
        return RecordRows(rows=matching[hint.offset : end], cut=True, total=len(matching))
