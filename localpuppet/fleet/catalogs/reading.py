"""Read the catalogs of other nodes: published ones from the bus, others from the node itself.

- Catalogs are read when a query needs them, and not followed: most readers of the inventory need
  none. What was fetched is used until the node's entry names another digest.
- `catalogs/read/NODE` in the state directory is the digest and the packed catalog; all together
  have at most `MAX_CACHED` bytes. The digest is verified with each read.
- What no entry names any longer is removed, also that of a forgotten node.
- A catalog that a node sent on request is used for `FRESH` seconds, because a client of PuppetDB
  asks for its parts one by one.
"""

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path

from localpuppet.base.formats.names import NodeName
from localpuppet.base.machine.files import list_names, make_private, remove, replace_file
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.bus.layout import catalogs_of
from localpuppet.fleet.catalogs.asking import ask_catalog
from localpuppet.fleet.catalogs.document import MAX_PACKED, CatalogHeader, NodeCatalog
from localpuppet.fleet.catalogs.keeping import CatalogKeeper
from localpuppet.fleet.inventory.chunks import chunk_value, digest_of, fetch_chunks
from localpuppet.fleet.inventory.entry import CatalogSummary, InventoryEntry
from localpuppet.fleet.requests.client import RequestClient

MAX_CACHED = 1024 * 1024 * 1024
# Seconds for each reply of a node.
PATIENCE = 10.0
# Seconds for which the catalogs that nodes sent on request are used, and how many of them.
FRESH, MAX_FRESH = 10.0, 16
# Seconds between two removals of what no entry names any longer.
CLEAN = 60.0


class CatalogCache:
    """Packed catalogs of other nodes, on disk.

    Args:
        state: The state directory.
        most: The limit of all files together, in bytes.
    """

    def __init__(self, state: Path, *, most: int = MAX_CACHED) -> None:
        self._directory = state / "catalogs" / "read"
        self._most = most
        self._lock = threading.Lock()
        self._sizes: dict[str, int] = {}
        self._used = 0
        for path in map(self._directory.joinpath, list_names(self._directory)):
            self._note(path.name, path.stat().st_size)

    def read(self, node: NodeName, digest: str) -> bytes | None:
        """Return the cached catalog with a digest; `None` without one."""
        with suppress(OSError):
            head, _, data = (self._directory / node).read_bytes().partition(b"\n")
            if head == digest.encode("ascii", "replace") and digest_of(data) == digest:
                return data
        return None

    def write(self, node: NodeName, digest: str, data: bytes) -> None:
        """Cache a catalog, unless the cache is full."""
        value = chunk_value(digest, data)
        with self._lock:
            if self._used - self._sizes.get(node, 0) + len(value) > self._most:
                return
            make_private(self._directory)
            replace_file(self._directory / node, value, mode=0o600)
            self._note(node, len(value))

    def keep(self, nodes: Collection[str]) -> None:
        """Remove the catalogs of all nodes but these."""
        with self._lock:
            for name in self._sizes.keys() - set(nodes):
                remove(self._directory / name)
                self._note(name, 0)

    def _note(self, name: str, size: int) -> None:
        self._used += size - self._sizes.pop(name, 0)
        if size:
            self._sizes[name] = size


@dataclass(slots=True, eq=False)
class CatalogReader:
    """Reads catalogs of nodes.

    Attributes:
        me: This node, whose catalog is read from its disk.
        keeper: The catalog of this node.
        cache: Published catalogs that were read before.
        published: Returns the nodes that publish their catalog now.
        store: Returns the connected bus; raises `UnavailableError` during an outage.
        client: Returns what sends requests over a bus.
        monotonic: A monotonic time in seconds.
    """

    me: NodeName
    keeper: CatalogKeeper
    cache: CatalogCache
    _: KW_ONLY
    published: Callable[[], Collection[str]]
    store: Callable[[], Awaitable[KeyValue]]
    client: Callable[[KeyValue], RequestClient]
    monotonic: Callable[[], float] = time.monotonic
    _fresh: OrderedDict[NodeName, tuple[float, NodeCatalog]] = field(
        default_factory=OrderedDict, init=False
    )
    _next_clean: float = field(default=0.0, init=False)

    async def read_all(self, entries: Sequence[InventoryEntry]) -> list[NodeCatalog]:
        """Return the catalogs of several nodes, read at the same time; see `read`."""
        found = await asyncio.gather(*map(self.read, entries), return_exceptions=True)
        for one in found:
            if isinstance(one, BaseException):
                raise one
        return [one for one in found if isinstance(one, NodeCatalog)]

    async def read(self, entry: InventoryEntry) -> NodeCatalog:
        """Return the catalog of a node.

        Raises:
            InvalidInputError: The published catalog is malformed, or the bus lacks it.
            StateError: The catalog of this node is unknown.
            UnavailableError: The bus is unreachable or denies the read; or the node is
                unresponsive, or refuses the request.
        """
        if self.monotonic() >= self._next_clean:
            self._next_clean = self.monotonic() + CLEAN
            await asyncio.to_thread(lambda: self.cache.keep(self.published()))
        if entry.catalog is not None:
            return await self._published(entry, entry.catalog)
        if entry.node == self.me:
            return await asyncio.to_thread(self.keeper.read, self.me)
        since, known = self._fresh.get(entry.node, (0.0, None))
        if known is None or self.monotonic() - since > FRESH:
            client = self.client(await self.store())
            known = await ask_catalog(client, entry.node, patience=PATIENCE)
            self._fresh[entry.node] = self.monotonic(), known
            while len(self._fresh) > MAX_FRESH:
                self._fresh.popitem(last=False)
        return known

    async def _published(self, entry: InventoryEntry, summary: CatalogSummary) -> NodeCatalog:
        node, header = entry.node, _header(entry, summary)
        cached = await asyncio.to_thread(self.cache.read, node, summary.digest)
        if cached is not None:
            return NodeCatalog(node=node, header=header, packed=cached)
        data = await fetch_chunks(
            await self.store(),
            catalogs_of(node),
            digest=summary.digest,
            size=summary.size,
            most=MAX_PACKED,
        )
        found = await asyncio.to_thread(NodeCatalog.checked, node, header, data)
        await asyncio.to_thread(self.cache.write, node, summary.digest, data)
        return found


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
