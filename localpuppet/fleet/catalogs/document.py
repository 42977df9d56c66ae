"""The catalog of a node's last good run: what it is of, and its packed canonical form.

- The packed form is the canonical JSON (`node.puppet.catalog`), compressed with zlib. Its digest
  depends on the content only, so a run without changes gives the same bytes.
- A reader unpacks bytes only after it has verified their digest.
- Limits: `MAX_PACKED` bytes packed, `node.puppet.catalog.MAX_BYTES` unpacked.
"""

import zlib

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName, RunId
from localpuppet.base.formats.packed import unpacked
from localpuppet.base.value import Value
from localpuppet.node.puppet.catalog import MAX_BYTES, CanonicalCatalog

MAX_PACKED = 8 * 1024 * 1024


class CatalogHeader(Value):
    """The run of a catalog, and the digest of its packed form.

    Attributes:
        run: The run that applied it.
        at: When that run ended, in seconds since 1970, UTC.
        release: The applied release.
        environment: Puppet's environment.
        commit: The commit of the release; empty if it was not staged.
        digest: SHA-256 of the packed form, hexadecimal; empty if the catalog is unknown.
        size: The bytes of the packed form.
        resources: How many resources it has; `None` if unknown.
        problem: Why the catalog is unknown, in one line; otherwise empty.
    """

    run: RunId
    at: float
    release: str
    environment: str
    commit: str = ""
    digest: str = ""
    size: int = 0
    resources: int | None = None
    problem: str = ""


class NodeCatalog(Value):
    """A catalog of a node: verified, and checked once.

    Attributes:
        node: The node.
        header: The header.
        packed: The packed catalog.
    """

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
        """Return the catalog."""
        return unpack_catalog(self.packed, node=self.node)

    def text(self) -> bytes:
        """Return the canonical JSON."""
        return zlib.decompress(self.packed)


def pack_catalog(catalog: CanonicalCatalog) -> bytes:
    """Return a catalog packed; raise `InvalidInputError` above a limit."""
    data = zlib.compress(catalog.to_bytes())
    if len(data) > MAX_PACKED:
        raise InvalidInputError(
            f"is too large: {len(data)} bytes packed, the limit is {MAX_PACKED}"
        )
    return data


def unpack_catalog(data: bytes, *, node: NodeName) -> CanonicalCatalog:
    """Return the catalog in verified bytes of a node.

    Raises:
        InvalidInputError: The bytes are malformed, too large, or of another node.
    """
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
