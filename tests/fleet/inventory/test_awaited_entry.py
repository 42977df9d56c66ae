"""Entries that a run waits for: their form, and when a view has them."""

from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.inventory.outbox import AwaitedEntry, ViewedNode, awaited, lacking
from tests.fleet.inventory.entries import entry

DB, WEB = NodeName("db01.example.com"), NodeName("web01.example.com")
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
def test_the_awaited_entry_or_a_newer_entry_is_sufficient(
    seen: dict[NodeName, ViewedNode], missing: str
) -> None:
    assert lacking((ONE,), seen, {}) == missing


def test_the_missing_nodes_are_named_with_their_known_reasons() -> None:
    other = AwaitedEntry(node=WEB, digest="b" * 64, at=1.0)
    found = lacking((ONE, other), {}, {WEB: "its key is not pinned"})
    assert found == f"{DB}, {WEB} (its key is not pinned)"
