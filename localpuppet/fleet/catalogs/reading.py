"""Read the catalogs of other nodes: published ones from the bus, others from the node itself.

- Catalogs are read when a query needs them, and not followed: most readers of the inventory need
  none. Nothing is written to disk, so a forgotten node leaves no catalog behind.
- Recent catalogs stay in memory, at most `MAX_RECENT` bytes: published ones while the node's entry
  names their digest, others for `FRESH` seconds. Clients ask for the parts of a catalog one by one.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.text import one_line
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.bus.layout import catalogs_of
from localpuppet.fleet.catalogs.document import MAX_PACKED, CatalogHeader, NodeCatalog
from localpuppet.fleet.catalogs.keeping import CatalogKeeper
from localpuppet.fleet.inventory.chunks import fetch_chunks
from localpuppet.fleet.inventory.entry import CatalogSummary, InventoryEntry
from localpuppet.fleet.records import from_record
from localpuppet.fleet.requests.chunked import invalid_reply, request_chunks
from localpuppet.fleet.requests.client import RequestClient

# Seconds for each reply of a node.
PATIENCE = 10.0
FRESH = 10.0
MAX_RECENT = 16 * 1024 * 1024


async def ask_catalog(client: RequestClient, node: NodeName, *, patience: float) -> NodeCatalog:
    """Return the catalog of a node.

    Args:
        client: Sends the requests.
        node: The node.
        patience: Seconds to wait for each reply.

    Raises:
        UnavailableError: The node is unresponsive, refuses, or sent something invalid.
    """
    reply = await request_chunks(client, node, "catalog", most=MAX_PACKED, patience=patience)
    try:
        header = from_record(CatalogHeader, reply.header)
    except InvalidInputError as error:
        raise invalid_reply(
            node, "catalog", "sent an unknown answer (update localpuppet there)"
        ) from error
    try:
        return NodeCatalog.checked(node, header, reply.data)
    except InvalidInputError as error:
        raise invalid_reply(node, "catalog", str(error)) from error


@dataclass(slots=True, eq=False)
class CatalogReader:
    """Reads catalogs of nodes.

    Attributes:
        me: This node, whose catalog is read from its disk.
        keeper: The catalog of this node.
        store: Returns the connected bus; raises `UnavailableError` during an outage.
        client: Returns what sends requests over a bus.
        monotonic: A monotonic time in seconds.
        most: The limit of the catalogs in memory, in bytes.
    """

    me: NodeName
    keeper: CatalogKeeper
    _: KW_ONLY
    store: Callable[[], Awaitable[KeyValue]]
    client: Callable[[KeyValue], RequestClient]
    monotonic: Callable[[], float]
    most: int = MAX_RECENT
    _recent: OrderedDict[NodeName, tuple[float, NodeCatalog]] = field(
        default_factory=OrderedDict, init=False
    )
    _used: int = field(default=0, init=False)

    async def read_all(self, entries: Sequence[InventoryEntry]) -> list[NodeCatalog]:
        """Return the catalogs of several nodes, read at the same time; see `read`."""
        reading = [asyncio.ensure_future(self.read(entry)) for entry in entries]
        try:
            return await asyncio.gather(*reading)
        finally:
            for item in reading:
                item.cancel()

    async def read(self, entry: InventoryEntry) -> NodeCatalog:
        """Return the catalog of a node.

        Raises:
            StateError: The catalog of this node is unknown.
            UnavailableError: The bus is unreachable, denies the read or lacks the catalog; or the
                catalog is malformed; or the node is unresponsive or refuses the request.
        """
        node, published = entry.node, entry.catalog
        if published is None and node == self.me:
            return await asyncio.to_thread(self.keeper.read, self.me)
        since, known = self._recent.get(node, (0.0, None))
        if known is not None and published is not None and known.header.digest == published.digest:
            return NodeCatalog(node=node, header=_header(entry, published), packed=known.packed)
        if known is not None and published is None and self.monotonic() - since <= FRESH:
            return known
        kv = await self.store()
        if published is None:
            catalog = await ask_catalog(self.client(kv), node, patience=PATIENCE)
        else:
            catalog = await _fetched(kv, node, _header(entry, published))
        self._keep(catalog)
        return catalog

    def _keep(self, catalog: NodeCatalog) -> None:
        _, before = self._recent.pop(catalog.node, (0.0, None))
        self._used += len(catalog.packed) - (0 if before is None else len(before.packed))
        self._recent[catalog.node] = self.monotonic(), catalog
        while self._used > self.most:
            _, (_, oldest) = self._recent.popitem(last=False)
            self._used -= len(oldest.packed)


async def _fetched(kv: KeyValue, node: NodeName, header: CatalogHeader) -> NodeCatalog:
    try:
        data = await fetch_chunks(
            kv, catalogs_of(node), digest=header.digest, size=header.size, most=MAX_PACKED
        )
        return await asyncio.to_thread(NodeCatalog.checked, node, header, data)
    except InvalidInputError as error:
        raise UnavailableError(one_line(str(error)), where=f"catalog of {node}") from error


def _header(entry: InventoryEntry, summary: CatalogSummary) -> CatalogHeader:
    return CatalogHeader(
        run=entry.run,
        at=entry.at,
        release=entry.release or "",
        environment=entry.environment or "",
        commit=entry.commit or "",
        digest=summary.digest,
        size=summary.size,
    )
