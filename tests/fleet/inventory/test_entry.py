"""Entries: their form on the bus, limits and digest; awaited ones, components, summaries."""

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
from localpuppet.base.formats.values import Json
from localpuppet.fleet.bus.bus_limits import (
    MAX_ENTRY,
    MAX_ENTRY_VALUES,
    MAX_NODE_COMPONENTS,
    MAX_PACKED_ENTRY,
)
from localpuppet.fleet.cli.inventory import counts, lines
from localpuppet.fleet.inventory.entry import (
    CatalogQuery,
    ExportsSummary,
    InventoryEntry,
    NodeComponent,
    NotedComponent,
    application_of,
    fact_texts,
    inflate,
    read_canonical,
    read_components,
)
from localpuppet.fleet.inventory.outbox import AwaitedEntry, ViewedNode, awaited, lacking
from tests.doubles.inventory import MemoryInventory
from tests.fleet.inventory.entries import entry

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
    read = read_canonical(data)
    cases: list[Any] = [facts, read["facts"]] if isinstance(read, dict) else [facts]
    for known in cases:
        texts = fact_texts(known)
        assert {name: json.loads(text) for name, text in texts.items()} == known
        assert all(map(str.isascii, texts.values()))


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
            results.append(repr(parse_object(data, where="x", limit=len(data), fast=fast)))
        except InvalidInputError as error:
            results.append(str(error))
    assert results[0] == results[1]


def test_the_fast_reader_reads_what_nodes_publish() -> None:
    pytest.importorskip("msgspec")
    entry = replace(ENTRY, facts={**ENTRY.facts, "text": "plain", "load": [1.5, 0, -1, None, True]})
    assert read_canonical(inflate(entry.to_payload())) == entry.to_dict()


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"at": 1_800_000_000.0}, False),
        ({"run": RunId.parse("20270101T000000.000000Z-00aa")}, False),
        ({"paths": ()}, False),
        ({"queries": (CatalogQuery(text="role=db", digest="another answer"),)}, False),
        ({"facts": dict(reversed(list(ENTRY.facts.items())))}, False),
        ({"facts": {"os": {"family": "RedHat"}}}, True),
        ({"roles": ("web",)}, True),
        ({"release": None}, True),
        ({"queries": (CatalogQuery(text="role=lb", digest="00"),)}, True),
        ({"exports": ExportsSummary(count=2, digest="fe")}, True),
    ],
    ids=str,
)
def test_the_digest_is_over_what_a_node_says_and_not_over_when_and_why(
    change: dict[str, Any], differs: bool
) -> None:
    assert (replace(ENTRY, **change).digested().digest != ENTRY.digest) is differs


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
        ({"release": "foo\x1b]0;owned\x07"}, "release: the release has a control character"),
    ],
)
def test_a_malformed_field_is_refused_with_its_place(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInputError) as refusal:
        _read({**ENTRY.to_dict(), **change})
    assert said in str(refusal.value)


def test_a_missing_field_is_refused_and_one_of_a_newer_version_is_passed_over() -> None:
    raw = ENTRY.to_dict()
    assert _read({**raw, "moods": ["fine"]}) == ENTRY
    del raw["roles"]
    with pytest.raises(InvalidInputError, match="'roles' is missing"):
        _read(raw)


def test_a_zip_bomb_is_refused_before_it_is_unpacked_and_the_limit_is_not() -> None:
    bomb = zlib.compress(b" " * (16 * MAX_ENTRY), 9)
    assert len(bomb) < MAX_PACKED_ENTRY
    with pytest.raises(InvalidInputError, match=f"more than {MAX_ENTRY} bytes"):
        inflate(bomb)
    data = json.dumps({"a": ""}).encode().ljust(MAX_ENTRY)
    assert inflate(zlib.compress(data)) == data


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


ONE = AwaitedEntry(node=DB, digest="a" * 64, at=100.0)


def test_an_awaited_entry_is_encoded_and_parsed() -> None:
    assert AwaitedEntry.read(ONE.to_dict()) == ONE
    said = entry(DB, at=100.0)
    assert awaited(said) == AwaitedEntry(node=DB, digest=said.digest, at=100.0)
    assert awaited(None) is None


@pytest.mark.parametrize(
    "changes", [{"digest": "a" * 63}, {"digest": "A" * 64}, {"at": True}, {"node": "*"}, {"x": 1}]
)
def test_an_invalid_awaited_entry_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match="awaited entry"):
        AwaitedEntry.read(ONE.to_dict() | changes)


@pytest.mark.parametrize(
    ("seen", "missing"),
    [
        ({}, DB),
        ({DB: ViewedNode(digest="b" * 64, at=99.0)}, DB),
        ({DB: ViewedNode(digest="b" * 64, at=100.0)}, ""),
        ({DB: ViewedNode(digest="b" * 64, at=101.0)}, ""),
        ({DB: ViewedNode(digest="a" * 64, at=50.0)}, ""),
        ({WEB: ViewedNode(digest="a" * 64, at=101.0)}, DB),
    ],
)
def test_the_awaited_or_newer_one_is_enough(seen: dict[NodeName, ViewedNode], missing: str) -> None:
    assert lacking((ONE,), seen, {}) == missing


def test_the_missing_nodes_are_named_with_their_known_reasons() -> None:
    other = AwaitedEntry(node=WEB, digest="b" * 64, at=1.0)
    found = lacking((ONE, other), {}, {WEB: "its key is not pinned"})
    assert found == f"{DB}, {WEB} (its key is not pinned)"


MYSQL: dict[str, Any] = {"name": "Lamp::Mysql[app1]", "produces": ["Sql[app1]"], "consumes": []}


def noted(**more: Any) -> NotedComponent:
    return NotedComponent.read({"schema": 1, **MYSQL, **more})


def test_recorded_components_are_read_and_sorted() -> None:
    web = noted(name="Lamp::Web[app1-1]", application="Lamp[app1]", consumes=["Sql[app1]"])
    found = read_components([web, noted()])
    expected = [("Lamp[app1]", "Lamp::Mysql[app1]"), ("Lamp[app1]", "Lamp::Web[app1-1]")]
    assert [(one.application, one.name) for one in found] == expected
    for one in found:
        assert NodeComponent.from_dict(one.to_dict()) == one


@pytest.mark.parametrize(
    ("name", "application"),
    [
        ("Lamp::Mysql[app1]", "Lamp[app1]"),
        ("Lamp[app1]", "Lamp[app1]"),
        ("A::B::C[x [y] z]", "A[x [y] z]"),
        ("mysql", "mysql"),
        ("[x]", "[x]"),
    ],
)
def test_the_application_of_a_reference(name: str, application: str) -> None:
    assert application_of(name) == application


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"name": ""}, "name: the name is empty"),
        ({"name": " x"}, "name: is not a name"),
        ({"name": "x" * 256}, "name: is not a name"),
        ({"name": "a\nb"}, "control character"),
        ({"application": 7}, "application: must be a string"),
        ({"produces": "x"}, "produces: must be a list"),
        ({"consumes": ["x"] * 65}, "consumes: has 65 elements"),
        ({"consumes": ["\u202e"]}, r"consumes\[0\]: the name has a control character"),
    ],
)
def test_an_invalid_component_is_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        read_components([noted(**more)])


def test_a_catalog_with_too_many_components_is_an_error() -> None:
    assert len(read_components([noted()] * MAX_NODE_COMPONENTS)) == MAX_NODE_COMPONENTS
    with pytest.raises(InvalidInputError, match="has 257 components; a node publishes at most 256"):
        read_components([noted()] * (MAX_NODE_COMPONENTS + 1))


NODES = [
    entry("a.example.com", at=1.0, roles=("web", "db"), facts={"os": {"family": "Debian"}, "n": 1}),
    entry("b.example.com", at=1.0, roles=("web",), facts={"os": {"family": "Debian"}, "n": None}),
    entry("c.example.com", at=1.0, facts={"os": "odd"}),
]


def test_values_are_counted_also_for_nodes_without_one() -> None:
    nodes = MemoryInventory(NODES)
    assert counts(nodes, "os.family") == [("Debian", 2), ("-", 1)]
    assert counts(nodes, "n") == [("-", 2), ("1", 1)]
    assert counts(nodes, "role") == [("web", 2), ("-", 1), ("db", 1)]
    assert counts(nodes, "osfamily") == [("Debian", 2), ("-", 1)]
    assert counts(MemoryInventory([]), "role") == []


def test_facts_become_lines() -> None:
    facts: dict[str, Json] = {"b": {"y": [1, "ü"], "x": {}}, "a": True}
    assert list(lines(facts)) == [("a", "true"), ("b.x", "{}"), ("b.y", '[1, "ü"]')]
