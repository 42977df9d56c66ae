"""All that one node exports, as it stands on the bus: packed, in chunks, under one digest.

Owns: the packed form, its limits, and what the digest is over. Refuses to know: keys, signatures.

- The resources are JSON in ASCII, sorted by type and title, packed with zlib, cut into chunks of
  `CHUNK` bytes. The digest is over the packed bytes and stands, with their number, in the node's
  signed inventory entry: that entry is the manifest of the chunks, and nothing is unpacked before
  it fits.
- At most `MAX_RESOURCES` resources and `MAX_VALUES` values in them, `MAX_PACKED` bytes packed and
  `MAX_INFLATED` bytes unpacked.
- The same resource twice is refused.

Example: `unpack(pack(resources).data) == tuple(sorted(resources, ...))`.
"""

import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.fields import Fields
from localpuppet.base.formats.packed import unpacked
from localpuppet.base.formats.strict_json import parse_object
from localpuppet.fleet.exports.resource import ExportedResource

CHUNK = 256 * 1024
MAX_PACKED = 4 * 1024 * 1024
MAX_INFLATED = 16 * 1024 * 1024
MAX_RESOURCES = 10_000
# Counted before anything is parsed: a small value of JSON is a large one in memory.
MAX_VALUES = 400_000
SCHEMA = 1

_WHERE = "exports"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedResources:
    """Resources as others get them.

    Attributes:
        data: The packed bytes; empty for none.
        digest: SHA-256 over them, hexadecimal; empty for none.
        count: How many resources.
    """

    data: bytes
    digest: str
    count: int

    @property
    def chunks(self) -> list[bytes]:
        """Return the parts, in order."""
        return [self.data[at : at + CHUNK] for at in range(0, len(self.data), CHUNK)]


def chunks_of(size: int) -> int:
    """Return how many chunks so many packed bytes make."""
    return -(-size // CHUNK)


def pack(resources: Iterable[ExportedResource]) -> PackedResources:
    """Return resources as others get them.

    Raises:
        InvalidInputError: There are too many, or they are too large.
    """
    found = sorted(resources, key=lambda one: (one.type, one.title))
    if not found:
        return PackedResources(data=b"", digest="", count=0)
    _check_count(len(found))
    listed = [one.to_dict() for one in found]
    data = json.dumps({"schema": SCHEMA, "resources": listed}, separators=(",", ":")).encode()
    _check_size(len(data), MAX_INFLATED, "as JSON")
    packed = zlib.compress(data)
    _check_size(len(packed), MAX_PACKED, "packed")
    return PackedResources(data=packed, digest=digest_of(packed), count=len(found))


def unpack(data: bytes) -> tuple[ExportedResource, ...]:
    """Return the resources in packed bytes.

    Raises:
        InvalidInputError: The bytes are not what `pack` makes.
    """
    _check_size(len(data), MAX_PACKED, "packed")
    try:
        found = unpacked(data, most=MAX_INFLATED)
    except ValueError as error:
        raise InvalidInputError(f"are malformed: {error}", where=_WHERE) from error
    if not found.isascii():  # one letter beyond makes a text of Python's four times as large
        raise InvalidInputError("are malformed: not ASCII, as JSON with escapes is", where=_WHERE)
    return read(found)


def read(data: bytes) -> tuple[ExportedResource, ...]:
    """Return the resources in JSON that somebody else wrote.

    Raises:
        InvalidInputError: It is too large, or one of them is refused.
    """
    raw = parse_object(data, where=_WHERE, limit=MAX_INFLATED, values=MAX_VALUES)
    return parse_resources(Fields(raw, where=_WHERE))


def parse_resources(fields: Fields) -> tuple[ExportedResource, ...]:
    """Return the resources in a list `resources`.

    Raises:
        InvalidInputError: One of them is refused, or there twice.
    """
    listed = fields.inner_list("resources", maximum=MAX_RESOURCES)
    found: dict[tuple[str, str], ExportedResource] = {}
    for one in listed:
        resource = ExportedResource.parse(one)
        if (resource.type, resource.title) in found:
            raise InvalidInputError("is there twice", where=resource.ref)
        found[(resource.type, resource.title)] = resource
    return tuple(found.values())


def digest_of(data: bytes) -> str:
    """Return the digest of packed bytes."""
    return hashlib.sha256(data).hexdigest()


def aged(
    resources: Iterable[ExportedResource],
    before: Iterable[ExportedResource],
    *,
    now: float,
) -> list[ExportedResource]:
    """Return resources with the time at which each was exported first.

    Args:
        resources: What is exported now.
        before: What was exported until now.
        now: Seconds since 1970, UTC.
    """
    known: Mapping[str, float] = {one.ref: one.since for one in before}
    return [replace(one, since=known.get(one.ref, now)) for one in resources]


def _check_count(count: int) -> None:
    if count > MAX_RESOURCES:
        raise InvalidInputError(
            f"are too many: {count} resources, the limit is {MAX_RESOURCES}", where=_WHERE
        )


def _check_size(size: int, limit: int, form: str) -> None:
    if size > limit:
        raise InvalidInputError(
            f"are too large: {size} bytes {form}, the limit is {limit}",
            where=_WHERE,
            hint="export fewer or smaller resources",
        )
