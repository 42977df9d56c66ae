"""Every reader of records, messages and databases names another format, and the cure."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import LocalpuppetError, StateError
from localpuppet.base.formats.names import RunId
from localpuppet.base.machine.sqlite import DamagedError
from localpuppet.fleet.agent.confirmation import Confirmation
from localpuppet.fleet.edges.kicks import HeldKick, kicked_by
from localpuppet.fleet.edges.reactions import ReactionState
from localpuppet.fleet.exports.held import HeldExports
from localpuppet.fleet.exports.recording import read_collected
from localpuppet.fleet.exports.resource import parse_resources
from localpuppet.fleet.inventory.admission import Tombstone
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.presence import form_problem
from localpuppet.fleet.inventory.view import View
from localpuppet.fleet.leases.keeper import LeaseBook
from localpuppet.fleet.requests.request import NodeReply, Request
from localpuppet.fleet.triggers.cause import Trigger
from localpuppet.fleet.triggers.inbox import Inbox
from localpuppet.fleet.trust.seen import SeenIds
from localpuppet.node.runs.run_records import Records, RunDirectory
from tests.doubles.ports import FakeClock, FakeProcesses

RUN = RunId("20261120T140000.000000Z-abcd")


def read_kicked(raw: Any, path: Path) -> object:
    (path / RUN).mkdir(exist_ok=True)
    (path / RUN / "kicks.json").write_text(json.dumps(raw))
    return kicked_by(Records(path, FakeProcesses()), RUN)


def read_collectors(raw: Any, path: Path) -> object:
    (path / RUN).mkdir(exist_ok=True)
    (path / RUN / "collected.json").write_text(json.dumps(raw))
    return read_collected(RunDirectory(path / RUN))


READERS: list[Callable[[Any, Path], object]] = [
    lambda raw, _: Trigger.parse(json.dumps(raw).encode()),
    lambda raw, _: Request.parse(json.dumps(raw).encode()),
    lambda raw, _: NodeReply.parse(json.dumps(raw).encode()),
    lambda raw, _: Tombstone.parse(json.dumps(raw).encode()),
    lambda raw, _: InventoryEntry.from_dict(raw),
    lambda raw, _: form_problem(raw),
    lambda raw, _: parse_resources(raw, where="exports"),
    lambda raw, _: HeldKick.from_dict(raw),
    lambda raw, _: Confirmation.from_dict(raw),
    lambda raw, _: ReactionState.from_dict(raw),
    read_kicked,
    read_collectors,
]


def problem_of(read: Callable[[Any, Path], object], raw: Any, path: Path) -> str:
    """Return the error of a reader as one line; `form_problem` returns its own."""
    try:
        return str(read(raw, path))
    except LocalpuppetError as error:
        return str(error)


@pytest.mark.parametrize("read", READERS)
def test_another_number_is_named(tmp_path: Path, read: Callable[[Any, Path], object]) -> None:
    assert "has schema 2; this version reads 1" in problem_of(read, {"schema": 2}, tmp_path)
    for raw in ({}, {"schema": "1"}):
        assert "has no schema number; this version reads 1" in problem_of(read, raw, tmp_path)
    assert "schema" not in problem_of(read, {"schema": 1}, tmp_path)


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
        (use_view, -5, "the agent rebuilds it"),
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
