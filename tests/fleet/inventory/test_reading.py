"""Inventory queries: "no such nodes" and "cannot ask" are different answers; states of nodes."""

import sqlite3
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, closing
from datetime import UTC, datetime
from pathlib import Path
from sqlite3 import Connection

import pytest

from localpuppet.base.errors import StateError, UnavailableError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.admission import ReceivedEntry
from localpuppet.fleet.inventory.entry import ExportsSummary, InventoryEntry
from localpuppet.fleet.inventory.reading import (
    RETURN,
    SKEW,
    InventoryAnswer,
    InventoryReader,
    UnlistedNodes,
    ask,
    outlived,
    refuse_lost,
    unlisted_nodes,
)
from localpuppet.fleet.inventory.tables import EntryRows, NodeBrief
from localpuppet.fleet.inventory.view import STANDING, NodeState, View
from tests.fleet.inventory.entries import entry

NOW = 1_700_000_000.0
MAX_STALE = 900.0


class Reader:
    revision = 7

    def __init__(self, current: float | None, *, damaged: bool = False) -> None:
        self._current = current
        self._damaged = damaged

    def current_until(self) -> float | None:
        return self._current

    def entries(self) -> Iterator[InventoryEntry]:
        if self._damaged:
            raise StateError("is damaged", where="view.sqlite")
        return iter(())

    def nodes(self, names: Collection[str] | None = None) -> Iterator[NodeBrief]:
        return iter(())

    def entry(self, node: NodeName) -> InventoryEntry | None:
        return None

    def rows(
        self, own: EntryRows | None = None, *, exports: bool = False
    ) -> AbstractContextManager[Connection]:
        raise NotImplementedError

    def check(self) -> None:
        """Do not end a question early."""


def _count(reader: InventoryReader) -> int:
    return len(list(reader.entries()))


def _ask(reader: Reader) -> InventoryAnswer[int] | str:
    return ask(reader, _count, now=NOW, max_stale=MAX_STALE)


@pytest.mark.parametrize("age", [0.0, MAX_STALE, -SKEW])
def test_an_empty_answer_is_valid_while_the_view_is_current(age: float) -> None:
    assert _ask(Reader(NOW - age)) == InventoryAnswer(answer=0, revision=7, age=max(0.0, age))


@pytest.mark.parametrize(
    ("current", "said"),
    [
        (None, "was not read from the bus yet"),
        (NOW - MAX_STALE - 1, "last current 15m 1s ago; inventory.max_stale is 15m"),
        (NOW + SKEW + 1, "the clock was set back by 31s"),
    ],
)
def test_a_view_that_is_not_current_answers_no_query(current: float | None, said: str) -> None:
    answer = _ask(Reader(current))
    assert isinstance(answer, str)
    assert said in answer


def test_an_unreadable_view_is_not_an_empty_answer() -> None:
    assert _ask(Reader(NOW, damaged=True)) == "view.sqlite: is damaged"


def _online(node: str, started_at: str | None, *, has_entry: bool) -> dict[str, dict[str, Json]]:
    return {node: {"node": node, "started_at": started_at, "has_entry": has_entry}}


def test_online_nodes_are_unlisted_and_some_are_lost_if_the_bus_is_younger_than_an_agent() -> None:
    online: dict[str, dict[str, Json]] = {
        **_online("old", "2026-11-27T10:00:00+00:00", has_entry=True),
        **_online("lost", "2026-11-27T12:00:00+00:00", has_entry=True),
        **_online("new", "2026-11-27T12:00:00+00:00", has_entry=False),
        "robbed": {"node": "robbed", "state": "not trusted"},
    }
    born = datetime(2026, 11, 27, 11, tzinfo=UTC).timestamp()

    def unlisted(*, born: float = born, later: float = 1.0) -> UnlistedNodes:
        return unlisted_nodes(online, ["old"], born=born, now=born + later)

    assert unlisted() == UnlistedNodes(names=("lost", "new"), lost=("lost",))
    with pytest.raises(UnavailableError, match="the bus lost its data, and has no entry yet of"):
        refuse_lost(unlisted())
    for none_lost in (unlisted(born=born - 7200), unlisted(later=RETURN), unlisted(born=0.0)):
        assert none_lost == UnlistedNodes(names=("lost", "new"))
        refuse_lost(none_lost)
    assert outlived(online, born)
    assert not outlived(online, born - 7200)
    assert not outlived({"lost": online["lost"], "robbed": online["robbed"]}, born)
    assert not outlived({"new": online["new"]}, born + 7200), "it may have made the bus"


THEN = 1_800_000_000.0
WEB, DB, STRANGER = (NodeName(f"{one}01.example.com") for one in ("web", "db", "new"))


@pytest.fixture
def view(tmp_path: Path) -> Iterator[View]:
    with closing(View(tmp_path / "view.sqlite", now=lambda: THEN)) as made:
        yield made


def test_the_state_of_a_node_has_its_entry_exports_and_refusal(view: View) -> None:
    exporting = entry(DB, at=THEN, exports=ExportsSummary(count=1, digest="e" * 64, size=9))
    for one in (entry(WEB, at=THEN - 1), exporting):
        view.take([ReceivedEntry(node=one.node, token=b"", found=EntryRows.of(one))])
    view.take([ReceivedEntry(node=WEB, token=b"", found="is rubbish")])
    web, stranger = view.standing([WEB, STRANGER]).values()
    assert web == NodeState(at=THEN - 1, exports=None, refused="is rubbish")
    assert stranger == NodeState(at=None, exports=None, refused="")
    assert view.standing([DB]) == {DB: NodeState(at=THEN, exports="e" * 64, refused="")}
    assert view.standing([]) == {}


def test_the_state_of_nodes_is_read_without_the_rows_of_others(view: View, tmp_path: Path) -> None:
    """A waiting step reads it five times a second, on nodes whose view has thousands of others."""
    view.standing([WEB])
    with closing(sqlite3.connect(tmp_path / "view.sqlite")) as connection:
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {STANDING}", ("[]",))]
    read = [line for line in plan if not line.startswith("SCAN asked VIRTUAL TABLE")]
    assert len(read) == 2
    assert all(line.startswith("SEARCH ") for line in read), read
