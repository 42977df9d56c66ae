"""Exported resources: what is read and refused by name, and all that a node exports, packed.

The same resources have the same bytes, and nothing is too large.
"""

import json
import os
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.fleet.bus.bus_limits import (
    MAX_EXPORTED_RESOURCE,
    MAX_EXPORTED_RESOURCES,
    MAX_EXPORTS,
    MAX_PACKED_EXPORTS,
)
from localpuppet.fleet.exports.resource import (
    ExportedResource,
    aged,
    named_type,
    pack,
    texts_in,
    unpack,
)
from localpuppet.fleet.inventory.chunks import CHUNK, chunks_of, cut, digest_of
from tests.fleet.make import random_text, resource

BINARY = {"__ptype": "Binary", "__pvalue": "/wA="}


def parse(**changed: Any) -> ExportedResource:
    return ExportedResource.read({**resource("File", "/etc/x", content="x").to_dict(), **changed})


def test_a_resource_is_encoded_and_parsed() -> None:
    first = resource("Concat::Fragment", "größe", "b", "a", order=[1, {"x": None}], data=BINARY)
    assert ExportedResource.read(first.to_dict()) == first
    assert first.ref == "Concat::Fragment[größe]"
    assert first.place == "/etc/puppet/modules/app/init.pp:3"
    assert parse(file=None, line=None).place == ""
    assert parse(tags=["Web", "web"]).tags == ("web",)
    assert named_type("concat::fragment") == "Concat::Fragment", "as people declare it"
    assert named_type("File_line") == "File_line"
    with pytest.raises(InvalidInputError) as caught:
        parse(parameters={"owner": {"__ptype": "x"}})
    assert caught.value.where == "File[/etc/x]: parameters: owner"


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"type": "file"}, "not the name of a type"),
        ({"title": ""}, "title is empty"),
        ({"title": "a\nb"}, "control character"),
        ({"title": "x" * 1025}, "too long"),
        ({"tags": ["a\tb"]}, "control character"),
        ({"tags": ["a"] * 257}, "257 elements"),
        ({"parameters": {"Path": 1}}, "not the name of a parameter"),
        ({"parameters": {f"p{n}": 1 for n in range(501)}}, "more than 500 parameters"),
        ({"parameters": {"a": {"__ptype": "Sensitive", "__pvalue": "x"}}}, "of a type of Puppet's"),
        ({"parameters": {"a": [{"__ptype": "Deferred", "name": "x"}]}}, "of a type of Puppet's"),
        ({"parameters": {"a": {"b": {**BINARY, "c": 1}}}}, "of a type of Puppet's"),
        ({"parameters": {"a": {"__ptype": "Binary", "__pvalue": "?"}}}, "not a binary in base64"),
        ({"parameters": {"a": {"__ptype": "Binary", "__pvalue": 1}}}, "not a binary in base64"),
        ({"parameters": {"content": "x" * MAX_EXPORTED_RESOURCE}}, "too large"),
        ({"parameters": []}, "a mapping"),
        ({"line": -1}, "from 0"),
        ({"file": "/x\nError: not true"}, "file has a control character"),
        ({"certname": "x"}, "unknown key"),
    ],
)
def test_an_invalid_resource_is_refused(changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason) as caught:
        parse(**changed)
    assert str(caught.value).isprintable()


def test_every_text_of_a_value_is_found() -> None:
    value: Any = ["a", {"key": ["b", 1, None, True]}, {"__ptype": "Binary", "__pvalue": "Yw=="}]
    assert list(texts_in(value)) == ["a", "key", "b", "c"]


ONE, TWO = resource("File", "/a", content="x"), resource("Host", "b", ip="10.0.0.1")


def test_packed_resources_are_unpacked_in_a_fixed_order_and_none_twice() -> None:
    packed = pack([TWO, ONE])
    assert packed == pack([ONE, TWO])
    assert unpack(packed.data) == (ONE, TWO)
    assert packed.digest == digest_of(packed.data)
    assert (pack([]).data, pack([]).digest) == (b"", "")
    listed = {"schema": 1, "resources": [ONE.to_dict(), ONE.to_dict()]}
    with pytest.raises(InvalidInputError, match=r"File\[/a\]: is a duplicate"):
        unpack(zlib.compress(json.dumps(listed).encode()))


def test_chunks_are_the_bytes() -> None:
    data = os.urandom(2 * CHUNK + 1)
    assert b"".join(cut(data)) == data
    assert [len(chunk) for chunk in cut(data)] == [CHUNK, CHUNK, 1]
    assert [chunks_of(size) for size in (0, 1, CHUNK, CHUNK + 1)] == [0, 1, 1, 2]


def hosts(count: int, comment: str) -> Iterator[ExportedResource]:
    return (resource("Host", f"n{number}", comment=comment) for number in range(count))


@pytest.mark.parametrize(
    ("resources", "packed", "reason"),
    [
        (hosts(MAX_EXPORTED_RESOURCES + 1, ""),
         zlib.compress(json.dumps({"schema": 1,
         "resources": [{}] * (MAX_EXPORTED_RESOURCES + 1)}).encode()),
         f"{MAX_EXPORTED_RESOURCES + 1}"),
        (hosts(17, "x" * 2**20), zlib.compress(b" " * (MAX_EXPORTS + 1)), "16777216|as JSON"),
        (hosts(1, random_text(MAX_PACKED_EXPORTS)), bytes(MAX_PACKED_EXPORTS + 1), "bytes packed"),
    ],
    ids=["resources", "inflated", "packed"],
)  # fmt: skip
def test_all_have_limits(resources: Iterable[ExportedResource], packed: bytes, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason):
        pack(resources)
    with pytest.raises(InvalidInputError, match=reason):
        unpack(packed)


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"rubbish", pack([ONE]).data[:-1], pack([ONE]).data + b"x"),
        *map(zlib.compress, (b"rubbish", b"[]", b'{"schema": 1, "resources": 1}')),
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
