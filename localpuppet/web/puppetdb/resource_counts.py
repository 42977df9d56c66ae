"""The number of all resources in an environment, without whole catalogs.

- Puppetboard's overview counts the resources of an environment. Run summaries have the number of
  each node, so this count needs no catalog. Any other query for resources reads catalogs.
"""

from collections.abc import Callable, Collection
from dataclasses import KW_ONLY, dataclass

from localpuppet.fleet.inventory.query.records import RecordHint, RecordRows, RecordSource
from localpuppet.fleet.inventory.query.tree import Entity
from localpuppet.fleet.inventory.reading import InventoryReader


@dataclass(frozen=True, slots=True)
class ResourceCounts:
    """Counts resources of environments; a `RecordSource`.

    Attributes:
        reader: The entries of nodes.
        count: Returns the number of resources that the newest runs of nodes report.
        catalogs: The rows of other queries.
    """

    entities = (Entity.RESOURCES,)

    reader: InventoryReader
    _: KW_ONLY
    count: Callable[[Collection[str]], int]
    catalogs: RecordSource

    def rows(self, entity: Entity, hint: RecordHint) -> RecordRows:
        """Return rows of resources; see `RecordSource`."""
        is_count = hint.exact and hint.count_by == () and not (hint.since or hint.until)
        if not is_count or hint.equal.keys() - {"environment"}:
            return self.catalogs.rows(entity, hint)
        wanted = hint.equal.get("environment")
        nodes = [
            str(known.node)
            for known in self.reader.nodes()
            if wanted is None or known.environment in wanted
        ]
        return RecordRows(rows=[{"count": self.count(nodes)}], counted=True)
