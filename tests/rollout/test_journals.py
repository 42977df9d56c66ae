"""The journals of a machine: which there are, and what is left of a process that was killed."""

import shutil
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.formats.names import RolloutId
from localpuppet.rollout.events import RolloutResumed
from localpuppet.rollout.journal import Journals
from tests.rigs.node import PATIENCE, REPOSITORY
from tests.rollout.killed_beginnings import AT, BEGAN, ELSEWHERE, MOST, WAYS
from tests.rollout.simulated import ID, began


@pytest.fixture
def journals(tmp_path: Path) -> Journals:
    return Journals(tmp_path / "rollouts")


def test_an_unknown_rollout_is_an_error(journals: Journals) -> None:
    assert list(journals.ids()) == []
    with pytest.raises(InvalidInputError, match="this machine has no rollout"):
        journals.open(None)
    journals.begin(began([1]), at=AT).close()
    with pytest.raises(
        InvalidInputError, match="this machine has no rollout 20261122T110000Z-ffff"
    ):
        journals.open(RolloutId("20261122T110000Z-ffff"))


def test_old_journals_are_removed_except_the_newest_and_running_ones(
    journals: Journals, tmp_path: Path
) -> None:
    first = datetime(2026, 1, 1, tzinfo=UTC)
    ids = [RolloutId.of(first + timedelta(days=day), "0000", None) for day in range(24)]
    running = None
    for one in ids:
        journal = journals.begin(replace(began([1]), id=one), at=AT)
        if one == ids[1]:
            running = journal
        else:
            journal.close()
    (tmp_path / "rollouts" / "notes.sqlite").write_text("a file of another program")
    (tmp_path / "rollouts" / f"{ids[2]}.sqlite").write_bytes(b"x" * 5000)
    journals.forget(first + timedelta(days=89))
    assert len(journals.ids()) == 24
    journals.forget(first + timedelta(days=92))
    assert sorted(journals.ids()) == [ids[1], *ids[2:]], "the first is old, the third is not"
    journals.forget(first + timedelta(days=400))
    assert sorted(journals.ids()) == [ids[1], *ids[-20:]]
    left = {path.name.partition(".")[0] for path in (tmp_path / "rollouts").iterdir()}
    assert left == {ids[1], *ids[-20:], "notes"}, "nothing is left of the others"
    assert running is not None
    running.append(RolloutResumed(), at=AT)
    running.close()


def test_a_damaged_journal_hides_no_other_rollout(journals: Journals, tmp_path: Path) -> None:
    journals.begin(began([1]), at=AT).close()
    (damaged,) = (path for path in tmp_path.rglob("*.sqlite"))
    newer = replace(began([2]), id=RolloutId("20261122T120000Z-0123"))
    journals.begin(newer, at=AT).close()
    damaged.write_bytes(b"not a database" * 100)
    assert [state.began.id for state in journals.states()] == [newer.id]


@pytest.mark.parametrize("way", WAYS)
def test_a_killed_start_leaves_a_journal_with_its_first_event_or_none(
    way: str, tmp_path: Path
) -> None:
    """Killed before each file that it creates or removes."""
    subprocess.run(
        [sys.executable, "-m", "tests.rollout.killed_beginnings", str(tmp_path), way],
        cwd=REPOSITORY,
        check=True,
        timeout=PATIENCE,
    )
    whole = [(AT, BEGAN)] if way != "take over" else ELSEWHERE
    attempts = sorted(int(path.name) for path in tmp_path.iterdir())
    there = []
    for number in attempts:
        journals = Journals(tmp_path / str(number))
        there.append(list(journals.ids()))
        if there[-1]:
            journal = journals.open(ID)
            assert journal.events() == whole
            assert journal.state().resumable
            journal.remove()
        journals.begin(BEGAN, at=AT).close()
        assert journals.open(None).events() == [(AT, BEGAN)]
    assert there.count([ID]) >= 2, "also one that was killed"
    assert there.count([]) > 2
    assert attempts[-1] < MOST


def test_old_files_of_killed_processes_are_removed(tmp_path: Path) -> None:
    journals = Journals(tmp_path)
    journals.begin(BEGAN, at=AT).close()
    halves = (f".{ID}.sqlite.0123456789ab", f"{ID}.lock", f"{ID}.sqlite-wal")
    other = RolloutId("20261001T110000Z-0123")
    for name in (f".{other}.sqlite.0123456789ab", f"{other}.lock", f"{other}.sqlite-wal"):
        (tmp_path / name).touch()
    (tmp_path / halves[0]).touch()
    journals.forget(datetime(2026, 12, 1, tzinfo=UTC))
    assert len(list(tmp_path.iterdir())) == 6, "its process may still be running"
    journals.forget(datetime(2027, 12, 1, tzinfo=UTC))
    assert {path.name for path in tmp_path.iterdir()} == {f"{ID}.sqlite", *halves[:2]}
    journals.open(ID).remove()
    journals.forget(datetime(2027, 12, 1, tzinfo=UTC))
    assert list(tmp_path.iterdir()) == []


def test_a_second_rollout_of_an_id_is_not_begun(journals: Journals) -> None:
    journals.begin(BEGAN, at=AT).close()
    with pytest.raises(StateError, match="already exists"):
        journals.begin(began([3]), at=AT)
    journal = journals.open(ID)
    assert (journal.events(), journal.taken) == ([(AT, BEGAN)], False)


def test_a_journal_that_is_removed_meanwhile_is_not_created_again(
    journals: Journals, tmp_path: Path
) -> None:
    journals.begin(BEGAN, at=AT).close()
    journal = journals.open(ID)
    shutil.rmtree(tmp_path / "rollouts")
    with pytest.raises(StateError, match="is not there"):
        journal.events()
    assert list(journals.ids()) == []
