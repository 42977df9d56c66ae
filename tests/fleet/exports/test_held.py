"""Stored exports of other nodes: whole or not at all, found by type, tag and node."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.machine.sqlite import DamagedError
from localpuppet.fleet.exports.held import HeldExports, NodeExports, RefusedExports
from tests.fleet.make import resource

A, B, C = (NodeName(f"{one}.example.com") for one in "abc")


@pytest.fixture
def held(tmp_path: Path) -> Iterator[HeldExports]:
    made = HeldExports(tmp_path / "exports" / "held.sqlite")
    yield made
    made.close()


def titles(held: HeldExports, **wanted: str) -> list[str]:
    return [f"{one.node[0]}:{one.resource.title}" for one in held.find(**wanted)]


def test_it_is_found_by_type_tag_and_node(held: HeldExports) -> None:
    held.hold(A, "1", [resource("Host", "x", "web"), resource("File", "/x", "web")])
    held.hold(B, "2", [resource("Host", "y", "db"), resource("Host", "x", "web", ip="10.0.0.1")])
    assert titles(held) == ["a:/x", "a:x", "b:x", "b:y"]
    assert titles(held, kind="Host") == ["a:x", "b:x", "b:y"]
    assert titles(held, kind="Host", tag="web") == ["a:x", "b:x"]
    assert titles(held, kind="Host", tag="nosuch") == []
    assert titles(held, node=B) == ["b:x", "b:y"]
    assert next(iter(held.find(node=B))).resource == resource("Host", "x", "web", ip="10.0.0.1")
    assert held.digests() == {A: "1", B: "2"}


def test_stored_exports_are_replaced_and_dropped_as_a_whole(held: HeldExports) -> None:
    held.hold(A, "1", [resource("Host", "x", "web"), resource("Host", "y")])
    held.hold(A, "2", [resource("Host", "z")])
    assert titles(held) == ["a:z"]
    assert titles(held, kind="Host", tag="web") == []
    held.drop(A)
    assert (titles(held), held.digests()) == ([], {})


def test_a_refusal_is_recorded_and_changes_no_export(held: HeldExports) -> None:
    held.hold(A, "1", [resource("Host", "x")])
    held.refuse(A, "2", "rubbish", tried=True)
    held.refuse(A, "2", "the bus is unreachable", tried=False)
    held.refuse(A, "2", "rubbish", tried=True)
    assert titles(held) == ["a:x"]
    assert held.refused() == {A: RefusedExports(node=A, digest="2", reason="rubbish", tries=2)}
    held.refuse(A, "3", "other", tried=True)
    assert held.refused()[A].tries == 1
    held.hold(A, "3", [])
    assert held.refused() == {}


def test_stored_or_refused_exports_are_not_missing(held: HeldExports) -> None:
    held.hold(A, "1", [resource("Host", "x")])
    held.refuse(B, "2", "rubbish", tried=True)
    held.refuse(C, "3", "the bus is unreachable", tried=False)
    assert held.missing({A: "1", B: "2"}) == set()
    assert held.missing({A: "2", B: "1", C: "3"}) == {A, B, C}


def test_there_is_room_for_so_much(tmp_path: Path) -> None:
    held = HeldExports(tmp_path / "small.sqlite", most=300)
    held.hold(A, "1", [resource("Host", "x")])
    for _ in range(3):  # what is replaced makes room
        held.hold(A, "2", [resource("Host", "y")])
    with pytest.raises(InvalidInputError, match="no space left"):
        held.hold(B, "1", [resource("Host", "x" * 200)])
    assert titles(held) == ["a:y"]
    held.drop(A)
    held.hold(B, "1", [resource("Host", "x" * 100)])


def test_many_nodes_are_stored_at_once_and_too_large_ones_do_not_disturb(tmp_path: Path) -> None:
    held = HeldExports(tmp_path / "small.sqlite", most=600)
    held.hold(A, "1", [resource("Host", "old", "web")])
    large = [NodeExports.of(name, "2", [resource("Host", "x" * 500, "web")]) for name in (A, C)]
    small = NodeExports.of(B, "2", [resource("Host", "y", "web")])
    assert held.hold_all([large[0], small, large[1]]) == large
    assert titles(held, kind="Host", tag="web") == ["a:old", "b:y"]
    assert held.digests() == {A: "1", B: "2"}


def test_a_reader_sees_a_consistent_state(held: HeldExports) -> None:
    held.hold(A, "1", [resource("Host", "x"), resource("Host", "y")])
    reading = held.find()
    first = next(reading)
    held.hold(A, "2", [resource("Host", "z")])
    assert [first.resource.title, *(one.resource.title for one in reading)] == ["x", "y"]


def test_a_damaged_resource_is_an_error(held: HeldExports, tmp_path: Path) -> None:
    held.hold(A, "1", [resource("Host", "x")])
    held.close()
    with sqlite3.connect(tmp_path / "exports" / "held.sqlite") as connection:
        connection.execute("UPDATE resources SET body = '{\"nosuch\": 1}'")
    connection.close()
    with pytest.raises(DamagedError, match="damaged resource"):
        list(held.find())


def test_a_damaged_file_is_not_empty(tmp_path: Path) -> None:
    path = tmp_path / "held.sqlite"
    path.write_bytes(b"rubbish" * 1000)
    held = HeldExports(path)
    with pytest.raises(DamagedError):
        held.digests()
    held.rebuild()
    assert held.digests() == {}
    held.close()
