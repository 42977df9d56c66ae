"""The state of nodes in the view, read without their entries and without the other nodes'."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.inventory.admission import EntryRefusal, ReceivedEntry
from localpuppet.fleet.inventory.entry import ExportsSummary
from localpuppet.fleet.inventory.tables import EntryRows
from localpuppet.fleet.inventory.view import STANDING, NodeState, View
from tests.fleet.inventory.entries import entry

NOW = 1_800_000_000.0
WEB, DB, STRANGER = (NodeName(f"{one}01.example.com") for one in ("web", "db", "new"))


@pytest.fixture
def view(tmp_path: Path) -> Iterator[View]:
    with closing(View(tmp_path / "view.sqlite", now=lambda: NOW)) as made:
        yield made


def test_the_state_of_a_node_has_its_entry_exports_and_refusal(view: View) -> None:
    exporting = entry(DB, at=NOW, exports=ExportsSummary(count=1, digest="e" * 64, size=9))
    for one in (entry(WEB, at=NOW - 1), exporting):
        view.take([ReceivedEntry(node=one.node, token=b"", found=EntryRows.of(one))])
    view.take([ReceivedEntry(node=WEB, token=b"", found=EntryRefusal(reason="is rubbish"))])
    assert view.standing([WEB, STRANGER]) == {
        WEB: NodeState(at=NOW - 1, exports=None, refused="is rubbish"),
        STRANGER: NodeState(at=None, exports=None, refused=""),
    }
    assert view.standing([DB]) == {DB: NodeState(at=NOW, exports="e" * 64, refused="")}
    assert view.standing([]) == {}


def test_the_state_of_nodes_is_read_without_the_rows_of_others(view: View, tmp_path: Path) -> None:
    """A waiting step reads it five times a second, on nodes whose view has thousands of others."""
    view.standing([WEB])
    with closing(sqlite3.connect(tmp_path / "view.sqlite")) as connection:
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {STANDING}", ("[]",))]
    read = [line for line in plan if not line.startswith("SCAN asked VIRTUAL TABLE")]
    assert len(read) == 2
    assert all(line.startswith("SEARCH ") for line in read), read
