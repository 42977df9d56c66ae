"""Pack all exports of a node under one digest, and unpack them.

- The resources are ASCII JSON, sorted by type and title, compressed with zlib; `inventory.chunks`
  transfers them.
- The node's signed inventory entry contains the digest and the size of the packed bytes; the bytes
  are unpacked only after the digest is verified.
- Limits: `MAX_RESOURCES` resources, `MAX_VALUES` JSON values, `MAX_PACKED` bytes packed,
  `MAX_INFLATED` bytes unpacked.
- A duplicate resource is rejected.

Example: `unpack(pack(resources).data) == tuple(sorted(resources, ...))`.
"""

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import replace

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.fields import Fields
from localpuppet.base.formats.packed import unpacked
from localpuppet.base.formats.strict_json import parse_object
from localpuppet.base.value import Value
from localpuppet.fleet.exports.resource import ExportedResource
from localpuppet.fleet.inventory.chunks import digest_of

MAX_PACKED = 4 * 1024 * 1024
MAX_INFLATED = 16 * 1024 * 1024
MAX_RESOURCES = 10_000
# Counted before parsing: a small JSON value takes much memory when parsed.
MAX_VALUES = 400_000
SCHEMA = 1

_WHERE = "exports"


class PackedResources(Value):
    """All exported resources of a node, packed for the bus.

    Attributes:
        data: The packed bytes; empty for no resources.
        digest: Their SHA-256, hexadecimal; empty for no resources.
        count: The number of resources.
    """

    data: bytes
    digest: str
    count: int


def pack(resources: Iterable[ExportedResource]) -> PackedResources:
    """Return resources packed for the bus; raise `InvalidInputError` above a limit."""
    in_order = sorted(resources, key=lambda resource: (resource.type, resource.title))
    if not in_order:
        return PackedResources(data=b"", digest="", count=0)
    _check_count(len(in_order))
    listed = [resource.to_dict() for resource in in_order]
    data = json.dumps({"schema": SCHEMA, "resources": listed}, separators=(",", ":")).encode()
    _check_size(len(data), MAX_INFLATED, "as JSON")
    packed = zlib.compress(data)
    _check_size(len(packed), MAX_PACKED, "packed")
    return PackedResources(data=packed, digest=digest_of(packed), count=len(in_order))


def unpack(data: bytes) -> tuple[ExportedResource, ...]:
    """Return the resources in packed bytes; raise `InvalidInputError` if malformed or too large."""
    _check_size(len(data), MAX_PACKED, "packed")
    try:
        text = unpacked(data, most=MAX_INFLATED)
    except ValueError as error:
        raise InvalidInputError(f"are malformed: {error}", where=_WHERE) from error
    if not text.isascii():  # one non-ASCII letter makes Python's text take four times the memory
        raise InvalidInputError("are malformed: not ASCII, as JSON with escapes is", where=_WHERE)
    return read(text)


def read(data: bytes) -> tuple[ExportedResource, ...]:
    """Return the resources in untrusted JSON; raise `InvalidInputError` if any is invalid."""
    raw = parse_object(data, where=_WHERE, limit=MAX_INFLATED, values=MAX_VALUES)
    return parse_resources(Fields(raw, where=_WHERE))


def parse_resources(fields: Fields) -> tuple[ExportedResource, ...]:
    """Return the resources in a list of exports; reject duplicates."""
    fields.schema(SCHEMA)
    listed = fields.inner_list("resources", maximum=MAX_RESOURCES)
    by_reference: dict[tuple[str, str], ExportedResource] = {}
    for item in listed:
        resource = ExportedResource.parse(item)
        if (resource.type, resource.title) in by_reference:
            raise InvalidInputError("is a duplicate", where=resource.ref)
        by_reference[(resource.type, resource.title)] = resource
    return tuple(by_reference.values())


def aged(
    resources: Iterable[ExportedResource],
    before: Iterable[ExportedResource],
    *,
    now: float,
) -> list[ExportedResource]:
    """Return resources with the time at which the node first exported each.

    Args:
        resources: The current exports.
        before: The previous exports.
        now: Seconds since 1970, UTC.
    """
    known: Mapping[str, float] = {earlier.ref: earlier.since for earlier in before}
    return [replace(resource, since=known.get(resource.ref, now)) for resource in resources]


def _check_count(count: int) -> None:
    if count > MAX_RESOURCES:
        raise InvalidInputError(
            f"exceed the limit: {count} resources, the limit is {MAX_RESOURCES}", where=_WHERE
        )


def _check_size(size: int, limit: int, form: str) -> None:
    if size > limit:
        raise InvalidInputError(
            f"are too large: {size} bytes {form}, the limit is {limit}",
            where=_WHERE,
            hint="export fewer or smaller resources",
        )
