"""Several sources of rows as one: each entity has one of them."""

from collections.abc import Sequence

from localpuppet.fleet.inventory.query.records import RecordHint, RecordRows, RecordSource
from localpuppet.fleet.inventory.query.tree import Entity


class CombinedRecords:
    """Rows of several sources; a `RecordSource`.

    Args:
        sources: The sources; the last one that has an entity is asked.
    """

    def __init__(self, sources: Sequence[RecordSource]) -> None:
        self._sources = {entity: source for source in sources for entity in source.entities}
        self.entities = tuple(self._sources)

    def rows(self, entity: Entity, hint: RecordHint) -> RecordRows:
        """Return rows of an entity; see `RecordSource`."""
        return self._sources[entity].rows(entity, hint)
