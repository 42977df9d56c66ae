"""The catalog of the last good run: packed, kept, published, and read from other nodes.

- The packed form is the canonical JSON (`node.puppet.catalog`), compressed with zlib. Its digest
  depends on the content only, so a run without changes gives the same bytes.
- A reader unpacks bytes only after it has verified their digest.
- Limits: `MAX_PACKED_CATALOG` bytes packed, `node.puppet.catalog.MAX_BYTES` unpacked.
- `catalogs/last.json` in the state directory is the header; `catalogs/offered/DIGEST` the packed
  catalog. The header is written last, so that it always names a complete file.
- If the catalog of a good run is unknown, the header has the reason. An older catalog is never
  presented as that of the last good run.
"""

import asyncio
import zlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Annotated, ClassVar

from localpuppet.base.errors import InvalidInputError, StateError, UnavailableError, check_limit
from localpuppet.base.formats.converter import AllowedRange, JsonRecord, from_record, to_record
from localpuppet.base.formats.json_file import read_json
from localpuppet.base.formats.names import NodeName, RunId
from localpuppet.base.formats.packed import unpacked
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.times import LAST_TIME
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.files import disk_errors, make_private, write_json
from localpuppet.base.value import Value
from localpuppet.fleet.bus.bus_limits import MAX_PACKED_CATALOG
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.bus.layout import catalogs_of
from localpuppet.fleet.inventory.chunks import ChunkOutbox, ChunkWriter, fetch_chunks
from localpuppet.fleet.inventory.entry import CatalogSummary, InventoryEntry
from localpuppet.fleet.requests.request import ChunkArguments
from localpuppet.fleet.requests.request_client import (
    RequestClient,
    invalid_reply,
    reply_chunk,
    request_chunks,
)
from localpuppet.node.puppet.catalog import MAX_BYTES, CanonicalCatalog


class CatalogHeader(JsonRecord):
    """The run of a catalog, and the packed form's digest and size; a problem if that is unknown."""

    SCHEMA: ClassVar = 1
    run: RunId
    at: Annotated[float, AllowedRange(minimum=0, maximum=LAST_TIME)]
    release: str
    environment: str
    commit: str = ""
    digest: str = ""
    size: int = 0
    resources: int | None = None
    problem: str = ""


class NodeCatalog(Value):
    """A catalog of a node: verified, and checked once."""

    node: NodeName
    header: CatalogHeader
    packed: bytes

    @classmethod
    def checked(cls, node: NodeName, header: CatalogHeader, packed: bytes) -> "NodeCatalog":
        """Return the catalog in verified bytes; raise `InvalidInputError` if they are malformed."""
        unpack_catalog(packed, node=node)
        return cls(node=node, header=header, packed=packed)

    @property
    def catalog(self) -> CanonicalCatalog:
        return unpack_catalog(self.packed, node=self.node)

    def text(self) -> bytes:
        """Return the canonical JSON."""
        return zlib.decompress(self.packed)


def pack_catalog(catalog: CanonicalCatalog) -> bytes:
    """Return a catalog packed; raise `InvalidInputError` above a limit."""
    data = zlib.compress(catalog.to_bytes())
    check_limit(len(data), MAX_PACKED_CATALOG, unit="bytes packed")
    return data


def unpack_catalog(data: bytes, *, node: NodeName) -> CanonicalCatalog:
    """Return the catalog in verified bytes of a node."""
    where = f"catalog of {node}"
    try:
        catalog = CanonicalCatalog.parse(unpacked(data, most=MAX_BYTES), where=where)
    except InvalidInputError:
        raise
    except ValueError as error:
        raise InvalidInputError(f"is malformed: {error}", where=where) from error
    if catalog.certname != node:
        raise InvalidInputError("names another node as its own", where=where)
    return catalog


# `FILE` of `PuppetX::Localpuppet::Catalogs`, in the public directory of the run.
RECORDED = "catalog.json"
MAX_RECORDED = 64 * 1024 * 1024
# Seconds for each reply of a node.
PATIENCE = 10.0
FRESH = 10.0
MAX_RECENT = 16 * 1024 * 1024


class CatalogKeeper:
    """The catalog of this node's last good run."""

    def __init__(self, state: Path) -> None:
        self._file = state / "catalogs" / "last.json"
        self.outbox = ChunkOutbox(self._file.parent)

    def writer(self, node: NodeName) -> ChunkWriter:
        """Return the writer of this node's published catalog."""
        return ChunkWriter(
            prefix=catalogs_of(node),
            outbox=self.outbox,
            named=lambda entry: None if entry.catalog is None else entry.catalog.digest,
        )

    def keep(self, public: Path, header: CatalogHeader) -> CatalogHeader:
        """Keep the catalog that Puppet recorded, and return its header."""
        try:
            catalog = _recorded(public / RECORDED)
            data = pack_catalog(catalog)
            header = replace(
                header,
                digest=self.outbox.write(data),
                size=len(data),
                resources=len(catalog.resources),
            )
        except InvalidInputError as error:
            header = replace(header, problem=one_line(f"the catalog {error}"))
        make_private(self._file.parent)
        write_json(self._file, header.to_dict())
        return header

    def clean(self, *entries: InventoryEntry | None) -> None:
        """Remove the files that neither the last good run nor one of the entries names."""
        named = {entry.catalog.digest for entry in entries if entry is not None and entry.catalog}
        self.outbox.keep({self.header().digest, *named})

    def header(self) -> CatalogHeader:
        """Return the header of the last good run.

        Raises:
            StateError: No good run was recorded, or the file is damaged.
        """
        try:
            return CatalogHeader.from_dict(read_json(self._file))
        except FileNotFoundError as error:
            raise StateError(
                "keeps no catalog yet", where="this node", hint="the next good run keeps one"
            ) from error

    def read(self, node: NodeName) -> NodeCatalog:
        """Return the catalog of the last good run of this node.

        Raises:
            StateError: It is unknown, or damaged.
        """
        header = self._known()
        return NodeCatalog(node=node, header=header, packed=self.outbox.read(header.digest))

    def reply(self, args: ChunkArguments) -> dict[str, Json]:
        """Return the result of a request: the header and one chunk in base64.

        Raises:
            LocalpuppetError: The catalog is unknown, or another one than the caller began with.
        """
        header = self._known()
        return reply_chunk("catalog", to_record(header), self.outbox.read(header.digest), args)

    def _known(self) -> CatalogHeader:
        header = self.header()
        if header.problem:
            raise StateError(header.problem, where=f"run {header.run}")
        return header


def _recorded(path: Path) -> CanonicalCatalog:
    try:
        with disk_errors(path), path.open("rb") as file:
            data = file.read(MAX_RECORDED + 1)
    except StateError as error:
        raise InvalidInputError("was not recorded (see the log of the run)") from error
    if len(data) > MAX_RECORDED:
        raise InvalidInputError(f"has more than {MAX_RECORDED} bytes")
    try:
        raw = loads(data)
    except ValueError as error:
        raise InvalidInputError("is not JSON") from error
    if not isinstance(raw, Mapping):
        raise InvalidInputError("is not a mapping")
    return CanonicalCatalog.of(raw)


async def ask_catalog(client: RequestClient, node: NodeName, *, patience: float) -> NodeCatalog:
    """Return the catalog of a node, which may take `patience` seconds for each reply."""
    reply = await request_chunks(
        client, node, "catalog", most=MAX_PACKED_CATALOG, patience=patience
    )
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
    """Reads catalogs of nodes, and keeps at most `most` bytes of them in memory."""

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
            kv, catalogs_of(node), digest=header.digest, size=header.size, most=MAX_PACKED_CATALOG
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
        resources=summary.resources,
    )
