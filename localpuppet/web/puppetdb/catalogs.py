"""Rows of whole catalogs: `catalogs`, `edges`, and `resources` that entries do not have.

- A query reads the catalogs that nodes publish. A query that names at most `MAX_NAMED_CATALOGS`
  nodes by certname also asks those that publish none.
- No node is left out: if a catalog is missing, the query fails with the name of its node.
- A Sensitive parameter is not in a row, as in PuppetDB. An inner Sensitive value or a Deferred
  call is a text that names the type only, so no filter can find a secret.
- Rows are sorted by certname. Memory holds the catalogs of `AT_ONCE` nodes.
"""

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from uuid import UUID

from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.strict_json import compact, loads_again
from localpuppet.base.formats.times import show_epoch
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.query import records
from localpuppet.fleet.inventory.query.compiling import ALIASES, Relation
from localpuppet.fleet.inventory.query.tree import Entity, Select
from localpuppet.fleet.inventory.view import View
from localpuppet.fleet.kept_catalogs import NodeCatalog
from localpuppet.node.puppet.catalog import SENSITIVE, TYPE_KEY
from localpuppet.web.access.http_limits import MAX_NAMED_CATALOGS
from localpuppet.web.puppetdb.report_rows import report_hash
from localpuppet.web.puppetdb.report_views import ReportViews

AT_ONCE = 16
SHOWN = 3
_HREF = "/pdb/query/v4/catalogs"
# Columns whose texts a catalog has as they are.
_TEXTS = {"type", "title", "file", "relationship"}.union(
    f"{end}_{part}" for end in ("source", "target") for part in ("type", "title")
)
_COPIED = ("type", "title", "tags", "exported", "file", "line")

Row = dict[str, Json]
_Exact = Mapping[str, Collection[Json]]
# Returns the catalogs of nodes, in a thread outside of the event loop.
FetchCatalogs = Callable[[Sequence[InventoryEntry]], Sequence[NodeCatalog]]


class CatalogSource:
    """Rows of whole catalogs; a `RecordSource`.

    Resources that are only counted, by node and environment, are not read: an entry has their
    number. Without a published catalog, the newest run summary has one.
    """

    entities = (Entity.CATALOGS, Entity.EDGES, Entity.RESOURCES)

    def __init__(
        self, view: View, fetch: FetchCatalogs, reports: ReportViews | None = None
    ) -> None:
        self._view = view
        self._fetch = fetch
        self._reports = reports

    def relation(self, select: Select, question: records.QueryContext) -> Relation:
        """Return the rows of a query; see `RecordSource`.

        Raises:
            MissingRowsError: A node does not publish its catalog.
            UnavailableError: A node does not answer or refuses, or the bus is unreachable.
        """
        if select.entity is Entity.RESOURCES and records.counts_by(
            select, ("certname", "environment")
        ):
            total = "NULL" if self._reports is None else self._reports.total(question)
            number = f"coalesce(resources, {total}, 0)"
            sql = f"(SELECT certname, environment, {number} AS number FROM live)"  # noqa: S608
            return Relation(sql=sql, number="r.number")
        entity, named = select.entity, question.allowed(select, "certname")
        is_optional = records.is_of_entries(select)
        nodes = self._nodes(named)
        published = self._view.catalogs()
        missing = [node for node in nodes if node not in published]
        if missing and (is_optional or named is None or len(nodes) > MAX_NAMED_CATALOGS):
            more = ", …" if len(missing) > SHOWN else ""
            raise records.MissingRowsError(
                f"{len(missing)} of {len(nodes)} nodes do not publish their catalog:"
                f" {', '.join(missing[:SHOWN])}{more}",
                where=entity.value,
                hint="set 'inventory: {catalogs: true}' in their localpuppet.yaml, or name at most"
                f" {MAX_NAMED_CATALOGS} nodes by certname",
            )
        columns = {ALIASES.get(name, name) for name in records.columns_of(select)}
        exact = _exact(select, question)
        return records.filled(self._rows(entity, nodes, columns, exact), columns, question)

    def _nodes(self, named: Collection[Json] | None) -> list[NodeName]:
        names = None if named is None else {name for name in named if isinstance(name, str)}
        return [known.node for known in self._view.nodes(names)]

    def _rows(
        self, entity: Entity, nodes: Sequence[NodeName], columns: Collection[str], exact: _Exact
    ) -> Iterator[Row]:
        needed = [
            [f'"{column}":{compact(value)}'.encode() for value in values]
            for column, values in exact.items()
            if len(values) <= MAX_NAMED_CATALOGS  # each is searched in each catalog
        ]
        for begin in range(0, len(nodes), AT_ONCE):
            entries = [self._view.entry(node) for node in nodes[begin : begin + AT_ONCE]]
            # A node that was forgotten meanwhile has no entry.
            for fetched in self._fetch([entry for entry in entries if entry is not None]):
                text = fetched.text()
                if all(any(item in text for item in several) for several in needed):
                    yield from _ROWS[entity](fetched, loads_again(text), columns, exact)


def _exact(select: Select, question: records.QueryContext) -> _Exact:
    """Return the texts that rows have as they are in a catalog, by column."""
    found = {}
    for column in _TEXTS & records.columns_of(select):
        values = question.allowed(select, column)
        if values is not None and all(isinstance(value, str) for value in values):
            found[column] = frozenset(values)
    return found


def _catalog(
    catalog: NodeCatalog, raw: Mapping[str, Json], columns: Collection[str], exact: _Exact
) -> Iterator[Row]:
    header, node = catalog.header, catalog.node
    uuid = str(UUID(report_hash(node, header.run)[:32]))
    row: Row = {
        "certname": node,
        "version": header.commit or header.release,
        "hash": header.digest,
        "transaction_uuid": uuid,
        "catalog_uuid": uuid,
        "code_id": header.commit or None,
        "job_id": None,
        "environment": header.environment,
        "producer_timestamp": show_epoch(header.at),
        "producer": node,
    }
    for column, listed in (("resources", _resources), ("edges", _edges)):
        if column in columns:
            data: list[Json] = []
            for inner in listed(catalog, raw, ("resource",), {}):
                data.append({key: inner[key] for key in inner if key not in _OF_NODE})
            row[column] = {"href": f"{_HREF}/{node}/{column}", "data": data}
    yield row


_OF_NODE = ("certname", "environment")


def _resources(
    catalog: NodeCatalog, raw: Mapping[str, Json], columns: Collection[str], exact: _Exact
) -> Iterator[Row]:
    for resource in _listed(raw, "resources", exact):
        given = resource["parameters"]
        parameters = {
            name: _shown(value)
            for name, value in (given if isinstance(given, dict) else {}).items()
            if value != {TYPE_KEY: SENSITIVE}
        }
        row: Row = {
            "certname": catalog.node,
            "environment": catalog.header.environment,
            **{column: resource[column] for column in _COPIED},
            "parameters": parameters,
        }
        if "resource" in columns:
            named = compact([resource["type"], resource["title"], parameters])
            row["resource"] = hashlib.sha1(named.encode(), usedforsecurity=False).hexdigest()
        yield row


def _edges(
    catalog: NodeCatalog, raw: Mapping[str, Json], _: Collection[str], exact: _Exact
) -> Iterator[Row]:
    for edge in _listed(raw, "edges", exact):
        yield {"certname": catalog.node, **edge}


def _listed(raw: Mapping[str, Json], name: str, exact: _Exact) -> Iterator[Row]:
    listed = raw[name]
    for item in listed if isinstance(listed, list) else ():
        if isinstance(item, dict) and all(item[column] in exact[column] for column in exact):
            yield item


def _shown(value: Json) -> Json:
    """Return a value of a parameter with a text for each placeholder."""
    if isinstance(value, list):
        return [_shown(item) for item in value]
    if not isinstance(value, dict):
        return value
    if TYPE_KEY in value:
        return f"{value[TYPE_KEY]} [value redacted]"
    return {key: _shown(item) for key, item in value.items()}


_ROWS = {Entity.CATALOGS: _catalog, Entity.EDGES: _edges, Entity.RESOURCES: _resources}
