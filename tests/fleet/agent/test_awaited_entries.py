"""What a waiting step is compared with: a real view, and stored exports."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.agent.rollout_steps import AwaitedEntries
from localpuppet.fleet.exports.held import HeldExports
from localpuppet.fleet.inventory.admission import ReceivedEntry
from localpuppet.fleet.inventory.entry import ExportsSummary, InventoryEntry
from localpuppet.fleet.inventory.outbox import AwaitedEntry, awaited
from localpuppet.fleet.inventory.tables import EntryRows
from localpuppet.fleet.inventory.view import View
from localpuppet.fleet.triggers.cause import CauseKind, RunCause
from tests.doubles.identities import person
from tests.fleet.inventory.entries import entry, signed

DB = person("db01.example.com")
NAME = NodeName("db01.example.com")
NEW = entry(NAME, at=200.0)


@pytest.fixture
def view(tmp_path: Path) -> Iterator[View]:
    with closing(View(tmp_path / "view.sqlite", now=lambda: 300.0)) as made:
        yield made


@pytest.fixture
def held(tmp_path: Path) -> Iterator[HeldExports]:
    with closing(HeldExports(tmp_path / "exports.sqlite")) as made:
        yield made


def take(view: View, said: InventoryEntry) -> None:
    view.take([ReceivedEntry(node=NAME, token=signed(DB, said), found=EntryRows.of(said))])


def awaited_of(view: View, held: HeldExports) -> AwaitedEntries:
    return AwaitedEntries(view, held, is_current=lambda: True)


def waiting(said: InventoryEntry) -> RunCause:
    one = awaited(said)
    assert isinstance(one, AwaitedEntry)
    return RunCause(
        kind=CauseKind.ROLLOUT,
        sender="choria=alice/rollout/20261122T110000Z-0a1b",
        uuid="3f2504e0-4f89-41d3-9a0c-0305e82c3301",
        timestamp=0,
        expires=None,
        awaited_entries=(one,),
    )


def test_an_entry_is_missing_until_it_or_a_newer_is_there(view: View, held: HeldExports) -> None:
    entries, step = awaited_of(view, held), waiting(NEW)
    assert RunCause.from_dict(step.to_dict()) == step, "a killed agent resumes waiting"
    assert entries.lacking(step) == NAME
    take(view, entry(NAME, at=100.0, roles=("old",)))
    assert entries.lacking(step) == NAME
    take(view, NEW)
    assert entries.lacking(step) == ""
    take(view, entry(NAME, at=201.0, roles=("newer",)))
    assert entries.lacking(step) == ""


def test_an_equal_entry_of_an_earlier_time_is_enough(view: View, held: HeldExports) -> None:
    take(view, replace(NEW, at=100.0))
    assert awaited_of(view, held).lacking(waiting(NEW)) == ""


def test_too_old_an_entry_is_unpacked_once(view: View, held: HeldExports, tmp_path: Path) -> None:
    take(view, entry(NAME, at=100.0, roles=("old",)))
    entries, step = awaited_of(view, held), waiting(NEW)
    assert entries.lacking(step) == NAME
    with closing(sqlite3.connect(tmp_path / "view.sqlite")) as connection, connection:
        connection.execute("UPDATE entries SET token = x'00'")
    assert entries.lacking(step) == NAME
    assert "damaged" in awaited_of(view, held).lacking(step)


def test_the_reason_for_a_distrusted_entry_is_shown(view: View, held: HeldExports) -> None:
    view.distrust(NAME, "its key was revoked")
    assert awaited_of(view, held).lacking(waiting(NEW)) == f"{NAME} (its key was revoked)"


def test_a_step_waits_for_the_exports_of_an_entry_too(view: View, held: HeldExports) -> None:
    exporting = entry(NAME, at=200.0, exports=ExportsSummary(count=1, digest="e" * 64, size=9))
    entries, step = awaited_of(view, held), waiting(exporting)
    view.take(
        [ReceivedEntry(node=NAME, token=signed(DB, exporting), found=EntryRows.of(exporting))]
    )
    assert view.exporters() == {NAME: "e" * 64}
    assert entries.lacking(step) == NAME
    held.note_unread([(NAME, "e" * 64)], "not read from the bus yet")
    assert entries.lacking(step) == NAME
    held.refuse(NAME, "e" * 64, "too large", tried=True)
    assert entries.lacking(step) == "", "the collector reports refused exports"
    held.hold(NAME, "e" * 64, [])
    assert entries.lacking(step) == ""


def test_a_node_that_may_not_read_entries_waits_for_none(
    view: View, held: HeldExports, tmp_path: Path
) -> None:
    """Its view is never current: otherwise each step would fail after minutes of waiting."""
    for current in (True, False):
        assert AwaitedEntries(view, held, is_current=lambda: current).come() is current  # noqa: B023
    (tmp_path / "view.sqlite").mkdir()
    assert not AwaitedEntries(view, held, is_current=lambda: bool(view.current_until())).come()
