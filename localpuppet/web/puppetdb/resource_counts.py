"""The number of all resources in an environment, without whole catalogs.

- Puppetboard's overview counts the resources of an environment. An entry has the number of its
  catalog's resources; without a published catalog, the newest run summary has a number.
- Any other query for resources reads catalogs.
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
        with self.reader.rows() as connection:
            known = connection.execute("SELECT certname, environment, resources FROM live")
            numbers = {
                node: number for node, name, number in known if wanted is None or name in wanted
            }
        uncounted = [node for node, number in numbers.items() if number is None]
        total = sum(number or 0 for number in numbers.values()) + self.count(uncounted)
        return RecordRows(rows=[{"count": total}], counted=True)
