"""All that a node exports, packed: the same bytes for the same resources, and nothing too large."""

import json
import os
import zlib
from collections.abc import Iterable, Iterator

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.fleet.bus.bus_limits import MAX_EXPORTED_RESOURCES, MAX_EXPORTS, MAX_PACKED_EXPORTS
from localpuppet.fleet.exports.resource import ExportedResource, aged, pack, unpack
from localpuppet.fleet.inventory.chunks import CHUNK, chunks_of, cut, digest_of
from tests.fleet.make import random_text, resource

ONE, TWO = resource("File", "/a", content="x"), resource("Host", "b", ip="10.0.0.1")


def test_packed_resources_are_unpacked_in_a_fixed_order() -> None:
    packed = pack([TWO, ONE])
    assert packed == pack([ONE, TWO])
    assert unpack(packed.data) == (ONE, TWO)
    assert packed.digest == digest_of(packed.data)
    assert (pack([]).data, pack([]).digest) == (b"", "")


def test_chunks_are_the_bytes() -> None:
    data = os.urandom(2 * CHUNK + 1)
    assert b"".join(cut(data)) == data
    assert [len(chunk) for chunk in cut(data)] == [CHUNK, CHUNK, 1]
    assert [chunks_of(size) for size in (0, 1, CHUNK, CHUNK + 1)] == [0, 1, 1, 2]


def test_the_same_resource_twice_is_refused() -> None:
    listed = {"schema": 1, "resources": [ONE.to_dict(), ONE.to_dict()]}
    with pytest.raises(InvalidInputError, match=r"File\[/a\]: is a duplicate"):
        unpack(zlib.compress(json.dumps(listed).encode()))


def hosts(count: int, comment: str) -> Iterator[ExportedResource]:
    return (resource("Host", f"n{number}", comment=comment) for number in range(count))


@pytest.mark.parametrize(
    ("resources", "packed", "reason"),
    [
        (
            hosts(MAX_EXPORTED_RESOURCES + 1, ""),
            zlib.compress(
                json.dumps({"schema": 1, "resources": [{}] * (MAX_EXPORTED_RESOURCES + 1)}).encode()
            ),
            f"{MAX_EXPORTED_RESOURCES + 1}",
        ),
        (hosts(17, "x" * 2**20), zlib.compress(b" " * (MAX_EXPORTS + 1)), "16777216|as JSON"),
        (hosts(1, random_text(MAX_PACKED_EXPORTS)), bytes(MAX_PACKED_EXPORTS + 1), "bytes packed"),
    ],
    ids=["resources", "inflated", "packed"],
)
def test_there_is_a_limit_to_each(
    resources: Iterable[ExportedResource], packed: bytes, reason: str
) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        pack(resources)
    with pytest.raises(InvalidInputError, match=reason):
        unpack(packed)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"rubbish",
        zlib.compress(b"rubbish"),
        zlib.compress(b"[]"),
        zlib.compress(b'{"schema": 1, "resources": 1}'),
        pack([ONE]).data[:-1],
        pack([ONE]).data + b"x",
    ],
)
def test_rubbish_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidInputError):
        unpack(data)


def test_small_values_of_json_are_not_many_large_ones_in_memory() -> None:
    empty = "[" + ",".join(["[]"] * 500_000) + "]"
    body = json.dumps({"schema": 1, "resources": [{**ONE.to_dict(), "parameters": {"a": "@"}}]})
    with pytest.raises(InvalidInputError, match="more than 400000 values"):
        unpack(zlib.compress(body.replace('"@"', empty).encode()))


def test_letters_beyond_ascii_are_escaped_and_restored() -> None:
    """In Python one letter beyond ASCII makes a whole text up to four times as large."""
    emoji = resource("Host", "x", comment="☃ 😀")
    packed = pack([emoji])
    assert zlib.decompress(packed.data).isascii()
    assert unpack(packed.data) == (emoji,)
    raw = json.dumps({"schema": 1, "resources": [emoji.to_dict()]}, ensure_ascii=False)
    with pytest.raises(InvalidInputError, match="not ASCII"):
        unpack(zlib.compress(raw.encode()))
    lone = raw.replace("☃ 😀", "\\ud83d")
    with pytest.raises(InvalidInputError, match="lone surrogate"):
        unpack(zlib.compress(lone.encode()))


def test_a_resource_keeps_the_time_of_its_first_export() -> None:
    before = aged([ONE], [], now=10.0)
    assert [one.since for one in before] == [10.0]
    assert [one.since for one in aged([ONE, TWO], before, now=20.0)] == [10.0, 20.0]
