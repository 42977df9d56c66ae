"""Keep the catalog of the last good run, for requests and for publishing.

- `catalogs/last.json` in the state directory is the header; `catalogs/offered/DIGEST` the packed
  catalog. The header is written last, so that it always names a complete file.
- If the catalog of a good run is unknown, the header has the reason. An older catalog is never
  presented as that of the last good run.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.formats.json_file import read_json
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.files import disk_errors, make_private, write_json
from localpuppet.fleet.bus.layout import catalogs_of
from localpuppet.fleet.catalogs.document import CatalogHeader, NodeCatalog, pack_catalog
from localpuppet.fleet.inventory.chunks import ChunkOutbox, ChunkWriter
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.records import from_stored_record, to_record, to_stored_record
from localpuppet.fleet.requests.chunk import ChunkArguments
from localpuppet.fleet.requests.chunked import reply_chunk
from localpuppet.node.puppet.catalog import CanonicalCatalog

SCHEMA = 1
# `FILE` of `PuppetX::Localpuppet::Catalogs`, in the public directory of the run.
RECORDED = "catalog.json"
MAX_RECORDED = 64 * 1024 * 1024


class CatalogKeeper:
    """The catalog of this node's last good run.

    Args:
        state: The state directory.
    """

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
        """Keep the catalog that Puppet recorded, and return its header.

        Args:
            public: The public directory of a good run.
            header: The run, without digest.

        Raises:
            StateError: The disk refused.
        """
        try:
            data = pack_catalog(_recorded(public / RECORDED))
            header = replace(header, digest=self.outbox.write(data), size=len(data))
        except InvalidInputError as error:
            header = replace(header, problem=one_line(f"the catalog {error}"))
        make_private(self._file.parent)
        write_json(self._file, to_stored_record(header, schema=SCHEMA))
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
            return from_stored_record(CatalogHeader, read_json(self._file), schema=SCHEMA)
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
