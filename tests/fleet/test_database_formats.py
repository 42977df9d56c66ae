"""The databases of the fleet refuse a file of another format, and name the cure."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from localpuppet.base.errors import StateError
from localpuppet.base.machine.sqlite import DamagedError
from localpuppet.fleet.exports.held import HeldExports
from localpuppet.fleet.inventory.view import View
from localpuppet.fleet.leases.keeper import LeaseBook
from localpuppet.fleet.triggers.inbox import Inbox
from localpuppet.fleet.trust.seen import SeenIds
from tests.doubles.ports import FakeClock


def use_seen(path: Path) -> None:
    with closing(SeenIds(path, FakeClock())) as seen:
        seen.add("alice", "1", 2_000_000_000)


def use_inbox(path: Path) -> None:
    with closing(Inbox(path, FakeClock())) as inbox:
        inbox.seen("1")


def use_leases(path: Path) -> None:
    with closing(LeaseBook(path, boot_id="boot")) as book:
        book.strike("lease")


def use_view(path: Path) -> None:
    with closing(View(path, now=lambda: 0.0)) as view:
        assert view.revision == 0


def use_held(path: Path) -> None:
    with closing(HeldExports(path)) as held:
        held.digests()


@pytest.mark.parametrize(
    ("use", "step", "cure"),
    [
        (use_seen, -1, "move it away"),
        (use_inbox, -1, "run 'localpuppet apply'"),
        (use_view, -4, "the agent rebuilds it"),
        *((use, 1, "update localpuppet") for use in (use_seen, use_inbox, use_view)),
        *((use, 1, "update localpuppet") for use in (use_leases, use_held)),
    ],
)
def test_a_file_of_another_format_is_refused_with_its_cure(
    tmp_path: Path, use: Callable[[Path], None], step: int, cure: str
) -> None:
    path = tmp_path / "state" / "file.sqlite"
    use(path)
    with closing(sqlite3.connect(path)) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        connection.execute(f"PRAGMA user_version = {version + step}")
    with pytest.raises(StateError, match=f"another version of localpuppet.*{cure}") as error:
        use(path)
    assert not isinstance(error.value, DamagedError)
