"""Inventory queries: "no such nodes" and "cannot ask" are different answers."""

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from sqlite3 import Connection

import pytest

from localpuppet.base.errors import StateError, UnavailableError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.reading import (
    RETURN,
    SKEW,
    InventoryAnswer,
    InventoryReader,
    UnansweredQuery,
    UnlistedNodes,
    ask,
    outlived,
    refuse_lost,
    unlisted_nodes,
)
from localpuppet.fleet.inventory.tables import EntryRows, NodeBrief

NOW = 1_700_000_000.0
MAX_STALE = 900.0


class Reader:
    """A reader without nodes; it was current at a time, or cannot be read."""

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


def _ask(reader: Reader) -> InventoryAnswer[int] | UnansweredQuery:
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
    assert isinstance(answer, UnansweredQuery)
    assert said in answer.reason


def test_an_unreadable_view_is_not_an_empty_answer() -> None:
    answer = _ask(Reader(NOW, damaged=True))
    assert answer == UnansweredQuery(reason="view.sqlite: is damaged")


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
