"""Days of history that wait: the newest first, and no keys that are no days."""

import pytest

from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.bus.layout import HISTORY
from localpuppet.fleet.history.day import SLOTS, HistoryKind, history_key
from localpuppet.fleet.history.history_follower import HistoryBacklog
from tests.fleet.make import NODE, TODAY

ALL = 10 * SLOTS


def _key(age: int, kind: HistoryKind = HistoryKind.RUNS, node: NodeName = NODE) -> str:
    return history_key(node, kind, TODAY - age)


def test_the_newest_days_of_all_nodes_come_first() -> None:
    backlog = HistoryBacklog()
    other = NodeName("db01.example")
    for age in (3, 0, 7, 1, 3):
        for node in (NODE, other):
            for kind in HistoryKind:
                assert backlog.add(_key(age, kind, node))
    assert backlog.days == 4
    found = backlog.newest(TODAY, ALL)
    assert len(found) == len(set(found)) == 16
    assert [key.rpartition("/")[2] for key in found] == [
        f"{(TODAY - age) % SLOTS}" for age in (0, 1, 3, 7) for _ in range(4)
    ]
    assert backlog.newest(TODAY, 5) == found[:5]
    for key in found[:4]:
        backlog.discard(key)
    assert backlog.days == 3
    assert backlog.newest(TODAY, ALL) == found[4:]


@pytest.mark.parametrize(
    "key",
    [
        f"{HISTORY}{NODE}/runs/8",
        f"{HISTORY}{NODE}/runs/07",
        f"{HISTORY}{NODE}/runs/x",
        f"{HISTORY}{NODE}/runs/",
        f"{HISTORY}{NODE}/secrets/1",
        f"{HISTORY}{NODE}/runs/1/2",
        f"{HISTORY}_/runs/1",
        f"/localpuppet/presence/{NODE}",
    ],
)
def test_other_keys_do_not_wait(key: str) -> None:
    backlog = HistoryBacklog()
    assert not backlog.add(key)
    backlog.discard(key)
    assert backlog.days == 0


def test_the_number_of_waiting_keys_is_limited() -> None:
    backlog = HistoryBacklog(most=2)
    assert [backlog.add(_key(age)) for age in (0, 1, 2)] == [True, True, False]
    backlog.discard(_key(0))
    assert backlog.add(_key(2))
