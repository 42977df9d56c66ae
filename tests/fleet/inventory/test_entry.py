"""An inventory entry: its form on the bus, its limits, what its digest is over."""

import json
import tracemalloc
import zlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import ClassName, EnvironmentName, NodeName, RunId
from localpuppet.base.formats.strict_json import MAX_DEPTH, parse_object
from localpuppet.fleet.bus.bus_limits import MAX_ENTRY, MAX_ENTRY_VALUES, MAX_PACKED_ENTRY
from localpuppet.fleet.inventory.entry import (
    CatalogQuery,
    ExportsSummary,
    InventoryEntry,
    NodeComponent,
    inflate,
    json_texts,
    read_canonical,
)

WEB = NodeName.parse("web01.example.com")
DB = NodeName.parse("db01.example.com")
ENTRY = InventoryEntry(
    node=WEB,
    at=1_700_000_000.25,
    run=RunId.parse("20260101T000000.000000Z-00aa"),
    release="foo/tags/r1",
    environment=EnvironmentName.parse("production", where=""),
    facts={"os": {"family": "Debian"}, "networking": {"ip": "10.0.0.1"}, "text": "grüße\u2028"},
    roles=("web", "cache"),
    classes=(ClassName.parse("nginx::vhost", where=""),),
    components=(
        NodeComponent(
            name="Lamp::Web[a]", application="Lamp[b]", produces=("Http[a]",), consumes=()
        ),
    ),
    kicks=("haproxy",),
    queries=(CatalogQuery(text="role=db", digest="00"),),
    exports=ExportsSummary(count=2, digest="ff"),
    paths=((DB,), ()),
).digested()


def _read(raw: dict[str, Any]) -> InventoryEntry:
    return InventoryEntry.parse(zlib.compress(json.dumps(raw).encode()))


def test_an_entry_is_encoded_and_parsed() -> None:
    assert InventoryEntry.parse(ENTRY.to_payload()) == ENTRY


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)  # fmt: skip


@given(st.dictionaries(st.text(), JSON), st.booleans())
def test_the_fast_reader_returns_what_the_strict_one_does(facts: Any, is_ascii: bool) -> None:
    data = json.dumps({"facts": facts}, separators=(",", ":"), ensure_ascii=is_ascii).encode()
    _check_readers(data)
    texts = json_texts(facts.values())
    assert [*map(json.loads, texts)] == [*facts.values()]
    assert all(map(str.isascii, texts))


@pytest.mark.parametrize(
    "value",
    [
        '1,"x":2',
        *("9223372036854775808", "-9223372036854775809", "18446744073709551616", "1" * 5000),
        *("1e400", "NaN", "-0", "1E2", "1.00", " 1", "[1,]", '"\\/"', '"\\ud800"', '"\x7f"', '"ü"'),
        "[" * MAX_DEPTH + "]" * MAX_DEPTH,
        "[" * 100_000 + "]" * 100_000,
    ],
)
def test_the_fast_reader_refuses_what_the_strict_one_does(value: str) -> None:
    _check_readers(f'{{"x":{value}}}'.encode())


def _check_readers(data: bytes) -> None:
    """Compare the readers: the result, or the message."""
    results = []
    for fast in (read_canonical, lambda _: None):
        try:
            value = parse_object(data, where="x", limit=len(data), fast=fast)
            results.append(repr(value))
        except InvalidInputError as error:
            results.append(str(error))
    assert results[0] == results[1]


def test_the_fast_reader_reads_what_nodes_publish() -> None:
    pytest.importorskip("msgspec")
    entry = replace(ENTRY, facts={**ENTRY.facts, "text": "plain", "load": [1.5, 0, -1, None, True]})
    assert read_canonical(inflate(entry.to_payload())) == entry.to_dict()


@pytest.mark.parametrize(
    "change",
    [
        {"at": 1_800_000_000.0},
        {"run": RunId.parse("20270101T000000.000000Z-00aa")},
        {"paths": ()},
        {"queries": (CatalogQuery(text="role=db", digest="another answer"),)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_digest_is_not_over_when_and_why(change: dict[str, Any]) -> None:
    assert replace(ENTRY, **change).digested().digest == ENTRY.digest


@pytest.mark.parametrize(
    "change",
    [
        {"facts": {"os": {"family": "RedHat"}}},
        {"roles": ("web",)},
        {"release": None},
        {"queries": (CatalogQuery(text="role=lb", digest="00"),)},
        {"exports": ExportsSummary(count=2, digest="fe")},
    ],
    ids=lambda change: next(iter(change)),
)
def test_the_digest_covers_all_fields(change: dict[str, Any]) -> None:
    assert replace(ENTRY, **change).digested().digest != ENTRY.digest


def test_the_order_of_facts_is_not_a_difference() -> None:
    turned = replace(ENTRY, facts=dict(reversed(list(ENTRY.facts.items()))))
    assert turned.digested().digest == ENTRY.digest


def test_a_field_of_a_newer_version_is_passed_over() -> None:
    assert _read({**ENTRY.to_dict(), "moods": ["fine"]}) == ENTRY


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"node": "Web01.example.com"}, "node: node name"),
        ({"at": True}, "at: must be a number"),
        ({"run": "yesterday"}, "run: 'yesterday' is not a run id"),
        ({"facts": []}, "facts: must be a mapping"),
        ({"roles": [f"r{n}" for n in range(1000)]}, "roles: has 1000 elements; 0 to 64"),
        ({"roles": ["web\nroot"]}, "control character"),
        ({"classes": ["::Foo"]}, "classes[0]: '::Foo' is an invalid class name"),
        ({"components": ["a"]}, "components[0]: must be a mapping, not a string"),
        ({"queries": [{"text": "x", "digest": "0"}] * 257}, "queries: has 257 elements"),
        ({"paths": [{"nodes": [WEB] * 19}]}, "paths[0].nodes: has 19 elements"),
        ({"paths": [{"nodes": []}] * 33}, "paths: has 33 elements"),
        ({"exports": {"count": -1, "digest": None}}, "exports.count: is -1"),
        ({"environment": "Produc-tion"}, "environment: 'Produc-tion'"),
    ],
)
def test_a_malformed_field_is_refused_with_its_place(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInputError) as refusal:
        _read({**ENTRY.to_dict(), **change})
    assert said in str(refusal.value)


def test_a_missing_field_is_refused() -> None:
    raw = ENTRY.to_dict()
    del raw["roles"]
    with pytest.raises(InvalidInputError, match="'roles' is missing"):
        _read(raw)


def test_a_zip_bomb_is_refused_before_it_is_unpacked() -> None:
    bomb = zlib.compress(b" " * (16 * MAX_ENTRY), 9)
    assert len(bomb) < MAX_PACKED_ENTRY
    with pytest.raises(InvalidInputError, match=f"more than {MAX_ENTRY} bytes"):
        inflate(bomb)


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        (b"{}", "not packed with zlib"),
        (b"x" * (MAX_PACKED_ENTRY + 1), "bytes packed, the limit is"),
        (zlib.compress(b"{}")[:-1], "not one whole zlib stream"),
        (zlib.compress(b"{}") + b"more", "not one whole zlib stream"),
        (zlib.compress(b'{"a":' * 101 + b"1" + b"}" * 101), "nested too deep"),
        (zlib.compress(b'{"a":1,"a":2}'), "duplicate key"),
    ],
)
def test_an_invalid_entry_is_refused(payload: bytes, said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        InventoryEntry.parse(payload)


def test_a_bomb_of_exactly_the_limit_passes_the_unpacking() -> None:
    data = json.dumps({"a": ""}).encode().ljust(MAX_ENTRY)
    assert inflate(zlib.compress(data)) == data


def test_the_error_for_too_large_facts_names_the_setting_hide() -> None:
    large = replace(ENTRY, facts={"blob": "x" * MAX_ENTRY})
    with pytest.raises(InvalidInputError, match="hide"):
        large.to_payload()


@pytest.mark.parametrize("unit", [b"[],", b'{"":0},', b"1.5,", b"[[1]],"], ids=repr)
def test_an_entry_of_countless_values_is_refused_before_it_takes_memory(unit: bytes) -> None:
    raw = json.dumps({**ENTRY.to_dict(), "facts": {"many": [0]}}).encode()
    payload = zlib.compress(raw.replace(b"[0]", b"[" + unit * (MAX_ENTRY // 8) + b"0]", 1))
    assert len(payload) < 16 * 1024
    tracemalloc.start()
    try:
        with pytest.raises(InvalidInputError, match="has more than 100000 values"):
            InventoryEntry.parse(payload)
        assert tracemalloc.get_traced_memory()[1] < 32 * 1024 * 1024
    finally:
        tracemalloc.stop()


def test_brackets_in_texts_do_not_count_as_values() -> None:
    facts: dict[str, Any] = {"text": '[{",' * (MAX_ENTRY_VALUES // 2)}
    said = replace(ENTRY, facts=facts).digested()
    assert InventoryEntry.parse(said.to_payload()) == said


def test_a_release_with_a_control_character_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="release: the release has a control character"):
        _read({**ENTRY.to_dict(), "release": "foo\x1b]0;owned\x07"})
