"""Read the rows of a query from entries or from a `RecordSource`, and yield those that match."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.entry_brief import InventoryNode
from localpuppet.fleet.inventory.index import NODE
from localpuppet.fleet.inventory.query.columns import COLUMNS, OF_REPORTS
from localpuppet.fleet.inventory.query.conditions import Holds, compiled
from localpuppet.fleet.inventory.query.hints import Subqueries, fact_names, named_nodes, necessary
from localpuppet.fleet.inventory.query.record_hints import record_hint
from localpuppet.fleet.inventory.query.records import RecordSource
from localpuppet.fleet.inventory.query.resource_scope import is_of_entries, scope_of
from localpuppet.fleet.inventory.query.rows import NodeRows, QueryRow
from localpuppet.fleet.inventory.query.shaping import MatchingRow
from localpuppet.fleet.inventory.query.tree import ALL, Entity, Select, is_grouped
from localpuppet.fleet.inventory.reading import InventoryReader, Scalar

# The limit of node names in a query of the index; above it all entries are read.
MAX_NAMED = 10_000
# Entities with one row for each node.
_SINGLE = (Entity.INVENTORY, Entity.NODES, Entity.FACTSETS)
_DISTINCT = (Entity.ENVIRONMENTS, Entity.FACT_NAMES, Entity.FACT_PATHS, Entity.PRODUCERS)
_OF_REPORTS = frozenset(OF_REPORTS)
_NO_REPORT: Mapping[str, Json] = dict.fromkeys(OF_REPORTS)
_NO_ENTRY: Mapping[str, Json] = dict.fromkeys(COLUMNS[Entity.NODES])


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryScan:
    """The matching rows of a query.

    Attributes:
        hits: The rows.
        ordered: Whether they are in the order of the query.
        cut: Whether the query's offset and limit are applied.
        skipped: The number of rows before the offset that are left out already.
        total: The number of rows without offset and limit, if the source counted them.
        counted: Whether each row is a group with the number of its rows as `count`.
    """

    hits: Iterator[MatchingRow]
    ordered: bool = False
    cut: bool = False
    skipped: int = 0
    total: int | None = None
    counted: bool = False


class Scanner:
    """Reads the rows of one query and its subqueries.

    Args:
        reader: The entries.
        records: The rows that entries do not have.
        subqueries: Evaluates subqueries.
    """

    def __init__(
        self,
        reader: InventoryReader,
        records: RecordSource,
        *,
        subqueries: Subqueries,
    ) -> None:
        self._reader = reader
        self._records = records
        self._budget = subqueries.budget
        self._subqueries = subqueries
        self.entities = frozenset(records.entities)

    def scan(self, select: Select, *, total: bool = False) -> QueryScan:
        """Return the matching rows before grouping.

        Args:
            select: The query.
            total: Whether the query needs the number of all rows.

        Raises:
            InvalidInputError: A regular expression is invalid, or a limit is exceeded.
        """
        of_entries = is_of_entries(select)
        holds = compiled(select.where, self._subqueries, by_node=of_entries)
        if not of_entries:
            return self._scan_records(select, holds, total=total)
        # A page of all nodes needs no row of those before it.
        skip = 0 if total or not _is_of_all_nodes(select) else select.offset
        if select.entity in _DISTINCT:
            candidates = self._distinct(select.entity)
        elif select.entity in self.entities and select.entity is Entity.NODES:
            candidates = self._with_reports(select, skip)
        else:
            candidates = self._of_entries(select, skip)
        hits = self._matching(candidates, holds)
        return QueryScan(hits=hits, ordered=_is_natural(select), skipped=skip)

    def _matching(self, candidates: Iterable[MatchingRow], holds: Holds) -> Iterator[MatchingRow]:
        see = self._budget.see
        for hit in candidates:
            see()
            if holds(hit.row, hit.node) is True:
                yield hit

    def _scan_records(self, select: Select, holds: Holds, *, total: bool) -> QueryScan:
        hint = record_hint(select, self._subqueries, total=total)
        scan = self._records.rows(select.entity, hint)
        candidates = (MatchingRow(QueryRow(values), None) for values in scan.rows)
        return QueryScan(
            hits=candidates if scan.counted else self._matching(candidates, holds),
            ordered=scan.ordered or scan.cut,
            cut=scan.cut,
            total=scan.total if scan.cut else None,
            counted=scan.counted,
        )

    def _of_entries(self, select: Select, skip: int) -> Iterator[MatchingRow]:
        names = fact_names(select.entity, select.where)
        scope = scope_of(select.where)
        for known in islice(self._reader.nodes(self._hint(select)), skip, None):
            node = NodeRows(known, self._reader)
            for row in node.rows(select.entity, names, scope):
                yield MatchingRow(row, node)

    def _distinct(self, entity: Entity) -> Iterator[MatchingRow]:
        """Yield the different values of all nodes, sorted."""
        distinct: dict[str, dict[str, Json]] = {}
        for known in self._reader.nodes():
            self._budget.see()
            for key, values in NodeRows(known, self._reader).values(entity):
                if entity is Entity.FACT_PATHS:  # the others have few values for each node
                    self._budget.see()
                if key not in distinct:
                    self._budget.keep_value()
                    distinct[key] = values
        for _, values in sorted(distinct.items()):
            yield MatchingRow(QueryRow(values), None)

    def _with_reports(self, select: Select, skip: int) -> Iterator[MatchingRow]:
        """Yield the rows of `nodes` with the columns of reports, sorted by certname."""
        for known, report in islice(self._paired(select), skip, None):
            if known is None:
                yield MatchingRow(QueryRow({**_NO_ENTRY, **(report or {})}), None)
            else:
                node = NodeRows(known, self._reader)
                values = {**node.node_values(), **(report or _NO_REPORT)}
                yield MatchingRow(QueryRow(values), node)

    def _paired(
        self, select: Select
    ) -> Iterator[tuple[InventoryNode | None, Mapping[str, Json] | None]]:
        """Yield each node's entry with its report; both are sorted by certname."""
        hint, equal = record_hint(select, self._subqueries), self._hint(select)
        rows = self._records.rows(Entity.NODES, hint).rows
        if not _OF_REPORTS.isdisjoint(hint.equal) and NODE not in equal:
            # A node without such a report is not in the answer.
            rows = list(rows)
            if len(rows) <= MAX_NAMED:
                equal = {**equal, NODE: {str(row["certname"]) for row in rows}}
        reports = iter(rows)
        report = next(reports, None)
        for known in self._reader.nodes(equal):
            while report is not None and str(report["certname"]) < known.node:
                yield None, report
                report = next(reports, None)
            if report is not None and report["certname"] == known.node:
                yield known, report
                report = next(reports, None)
            else:
                yield known, None
        while report is not None:
            yield None, report
            report = next(reports, None)

    def _hint(self, select: Select) -> Mapping[str, Collection[Scalar]]:
        """Return the index hint: what every node of an answer must have."""
        equal = necessary(select)
        if NODE not in equal:
            named = named_nodes(select, self._subqueries)
            scope = scope_of(select.where)
            if named is None and select.entity is Entity.RESOURCES and not scope.classes:
                named = self._reader.exporting(scope.kind)
            if named is not None and len(named) <= MAX_NAMED:
                equal[NODE] = named
        return equal


def _is_of_all_nodes(select: Select) -> bool:
    """Return whether a query has a row for each node, in the order of their names."""
    is_single = select.entity in _SINGLE and not is_grouped(select)
    return is_single and select.where == ALL and _is_natural(select)


def _is_natural(select: Select) -> bool:
    """Return whether rows that are sorted by node name are in the order of a query."""
    if not select.order:
        return True
    first = select.order[0]
    is_by_name = first.field.column == "certname" and not first.descending
    return is_by_name and (len(select.order) == 1 or select.entity in _SINGLE)
