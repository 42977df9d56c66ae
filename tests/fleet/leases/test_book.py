"""Leases on disk: the next agent reads what the one before wrote."""

from pathlib import Path

import pytest

from localpuppet.base.errors import StateError
from localpuppet.base.machine.ports import ProcessId
from localpuppet.fleet.leases.keeper import LeaseBook, LeaseRecord, LockUser

PROCESS = ProcessId(pid=7, boot_id="this", started=5)
NOTED = [
    LeaseRecord(
        name="db", value=b'{"a": 1}', ttl=60.0, until=7.5, user=LockUser(run="r", process=PROCESS)
    ),
    LeaseRecord(name="lead", value=b"\xff", ttl=30.0, until=8.0, user=None),
    LeaseRecord(name="unused", value=b"", ttl=30.0, until=8.0, user=LockUser()),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent" / "leases.sqlite"


def test_recorded_leases_survive_a_restart(path: Path) -> None:
    book = LeaseBook(path, boot_id="this")
    assert book.entries() == []
    assert not path.exists(), "the first record creates the file"
    for noted in NOTED:
        book.note(noted)
        book.note(noted)
    book.close()
    again = LeaseBook(path, boot_id="this")
    assert again.entries() == NOTED
    again.strike("lead")
    again.strike("never")
    assert again.entries() == [NOTED[0], NOTED[2]]
    again.close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_times_and_processes_of_another_boot_do_not_count(path: Path) -> None:
    book = LeaseBook(path, boot_id="this")
    book.note(NOTED[0])
    book.close()
    later = LeaseBook(path, boot_id="later")
    (found,) = later.entries()
    later.close()
    assert found.until == 0
    assert found.user == NOTED[0].user, "its boot id shows that the process has ended"


def test_a_damaged_book_is_an_error(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    path.write_bytes(b"no database" * 1000)
    book = LeaseBook(path, boot_id="this")
    with pytest.raises(StateError, match=r"leases\.sqlite: is damaged.*move it away"):
        book.entries()


def test_askers() -> None:
    assert str(LockUser(run="r", process=PROCESS)) == "run r"
    assert str(LockUser(process=PROCESS)) == "process 7"
    assert LockUser(run="r").is_same(LockUser(run="r", process=PROCESS))
    assert not LockUser(run="r", process=PROCESS).is_same(LockUser(process=PROCESS))
    assert LockUser(process=PROCESS).is_same(LockUser(process=PROCESS))
