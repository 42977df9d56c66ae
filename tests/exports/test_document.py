"""All that a node exports, packed: the same bytes for the same resources, and nothing too large."""

import json
import zlib

import pytest

from localpuppet.errors import InvalidInputError
from localpuppet.exports import document
from localpuppet.exports.document import aged, chunks_of, digest_of, pack, unpack
from tests.exports.offers import resource

ONE, TWO = resource("File", "/a", content="x"), resource("Host", "b", ip="10.0.0.1")


def test_what_is_packed_is_unpacked_whatever_the_order() -> None:
    packed = pack([TWO, ONE])
    assert packed == pack([ONE, TWO])
    assert unpack(packed.data) == (ONE, TWO)
    assert packed.digest == digest_of(packed.data)
    assert (pack([]).data, pack([]).digest) == (b"", "")


def test_chunks_are_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "CHUNK", 10)
    packed = pack([ONE])
    assert b"".join(packed.chunks) == packed.data
    assert len(packed.chunks) == chunks_of(len(packed.data))
    assert {len(chunk) for chunk in packed.chunks[:-1]} == {10}
    assert [chunks_of(size) for size in (0, 1, 10, 11)] == [0, 1, 1, 2]


def test_the_same_resource_twice_is_refused() -> None:
    listed = {"resources": [ONE.to_dict(), ONE.to_dict()]}
    with pytest.raises(InvalidInputError, match=r"File\[/a\]: is there twice"):
        unpack(zlib.compress(json.dumps(listed).encode()))


def test_there_is_a_limit_to_each(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = pack([ONE, TWO])
    for name, limit, reason in (
        ("MAX_RESOURCES", 1, "too many: 2 resources"),
        ("MAX_INFLATED", 100, "bytes as JSON"),
        ("MAX_PACKED", 20, "bytes packed"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(document, name, limit)
            with pytest.raises(InvalidInputError, match=reason):
                pack([ONE, TWO])
            with pytest.raises(InvalidInputError):
                unpack(packed.data)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"rubbish",
        zlib.compress(b"rubbish"),
        zlib.compress(b"[]"),
        zlib.compress(b'{"resources": 1}'),
        pack([ONE]).data[:-1],
        pack([ONE]).data + b"x",
        # Forty megabytes out of forty kilobytes.
        zlib.compress(b" " * 40 * 1024 * 1024),
    ],
)
def test_rubbish_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidInputError):
        unpack(data)


def test_small_values_of_json_are_not_many_large_ones_in_memory() -> None:
    empty = "[" + ",".join(["[]"] * 500_000) + "]"
    body = json.dumps({"resources": [{**ONE.to_dict(), "parameters": {"a": "@"}}]})
    with pytest.raises(InvalidInputError, match="more than 400000 values"):
        unpack(zlib.compress(body.replace('"@"', empty).encode()))


def test_letters_are_escaped_and_come_back() -> None:
    """One letter beyond ASCII makes all of a text of Python's up to four times as large."""
    emoji = resource("Host", "x", comment="☃ 😀")
    packed = pack([emoji])
    assert zlib.decompress(packed.data).isascii()
    assert unpack(packed.data) == (emoji,)
    raw = json.dumps({"resources": [emoji.to_dict()]}, ensure_ascii=False)
    with pytest.raises(InvalidInputError, match="not ASCII"):
        unpack(zlib.compress(raw.encode()))
    lone = raw.replace("☃ 😀", "\\ud83d")
    with pytest.raises(InvalidInputError, match="lone surrogate"):
        unpack(zlib.compress(lone.encode()))


def test_a_resource_keeps_the_time_of_its_first_export() -> None:
    before = aged([ONE], [], now=10.0)
    assert [one.since for one in before] == [10.0]
    assert [one.since for one in aged([ONE, TWO], before, now=20.0)] == [10.0, 20.0]
