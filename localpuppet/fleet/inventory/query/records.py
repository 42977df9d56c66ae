"""The port for rows that do not come from the inventory's entries: reports, events, catalogs.

- A source yields *candidates*: the evaluator applies the whole condition to every row. A hint only
  lets a source read less.
- Rows of `nodes` have the column `certname` and those of `columns.OF_REPORTS`, for every node with
  a report that the hint allows, sorted by certname. The evaluator adds them to the rows of entries.
  A node without an entry is a row with the columns of reports only.
- Times in rows are whole milliseconds, so a range of times can be exact: `< T` is `<= T - 1 ms`.
- Rows of other entities have all columns of `columns.COLUMNS`, and `latest_report?` where
  conditions can use it. A column outside of `RecordHint.columns` may be missing.
- Hidden facts and sensitive values are not in a row. What the evaluator sees, a client can find by
  filters.

Example: `source.rows(Entity.REPORTS, RecordHint(equal={"certname": ["web1"]}))`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.query.tree import Entity, SortOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCondition:
    """A condition on some columns of a row.

    Attributes:
        columns: The columns.
        holds: Whether a row with these columns has the condition.
    """

    columns: frozenset[str]
    holds: Callable[[Mapping[str, Json]], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordHint:
    """What a source may use to read less.

    Attributes:
        equal: The values by column, one of which every row of the answer has.
        since: The earliest time by column, inclusive, in milliseconds since 1970, UTC.
        until: The latest time by column, inclusive.
        further: Other conditions, each of which every row of the answer has.
        exact: Whether `equal`, `since`, `until` and `further` are the whole condition. Only then
            may a source that applies all of them apply `limit`, or count.
        columns: The columns that the query uses.
        order: The sort criteria; empty for any order.
        limit: The limit of rows after `offset`; `None` for all.
        offset: The number of rows to skip.
        total: Whether the query needs `RecordRows.total`.
        count_by: The columns of `group_by`, if the query only counts rows: its columns are among
            these and `count` without a field. `None` for any other query.
    """

    equal: Mapping[str, Collection[Json]] = field(default_factory=dict)
    since: Mapping[str, int] = field(default_factory=dict)
    until: Mapping[str, int] = field(default_factory=dict)
    further: tuple[RowCondition, ...] = ()
    exact: bool = False
    columns: frozenset[str] = frozenset()
    order: tuple[SortOrder, ...] = ()
    limit: int | None = None
    offset: int = 0
    total: bool = False
    count_by: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRows:
    """The rows of a source.

    Attributes:
        rows: The rows, by column.
        ordered: Whether they are in the order of the hint.
        cut: Whether the source applied the hint's condition, order, offset and limit.
        total: The number of rows without `offset` and `limit`, if the source applied them and the
            hint needs it.
        counted: Whether the source counted: each row has the columns of `RecordHint.count_by` and
            the number of its rows as `count`. Several rows may be of one group. Only for an exact
            hint; the evaluator adds, orders and limits the groups.
    """

    rows: Iterable[Mapping[str, Json]]
    ordered: bool = False
    cut: bool = False
    total: int | None = None
    counted: bool = False


class RecordSource(Protocol):
    """Rows of entities that entries do not have."""

    @property
    def entities(self) -> Collection[Entity]:
        """Return the entities of this source; `NODES` for the reports of nodes."""

    def rows(self, entity: Entity, hint: RecordHint) -> RecordRows:
        """Return rows of an entity.

        Args:
            entity: One of `entities`.
            hint: What the query needs.

        Raises:
            UnavailableError: The rows cannot be read now: a node does not answer, for example.
        """


class CombinedRecords:
    """Rows of several sources, or of none: each entity has one of them; a `RecordSource`.

    Args:
        sources: The sources; the last one that has an entity is asked.
    """

    def __init__(self, sources: Sequence[RecordSource] = ()) -> None:
        self._sources = {entity: source for source in sources for entity in source.entities}
        self.entities = tuple(self._sources)

    def rows(self, entity: Entity, hint: RecordHint) -> RecordRows:
        """Return rows of an entity; see `RecordSource`."""
        return self._sources[entity].rows(entity, hint)
