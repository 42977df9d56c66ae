"""Journals on disk: their events, which there are, and what killed processes leave."""

import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from localpuppet.base.errors import BusyError, InvalidInputError, StateError
from localpuppet.base.formats.names import RolloutId
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.machine.sqlite import Database, Format
from localpuppet.fleet.inventory.outbox import AwaitedEntry
from localpuppet.node.puppet.changes import PredictedChanges
from localpuppet.rollout.commands import RolloutCommand
from localpuppet.rollout.events import (
    ChecksEnded,
    Event,
    LastRunsReported,
    NodeResult,
    NodeRun,
    NodesSkipped,
    RolloutBegan,
    RolloutContinued,
    RolloutEnded,
    RolloutEnding,
    RolloutPaused,
    RolloutResumed,
    RolloutTakenOver,
    from_dict,
    to_dict,
)
from localpuppet.rollout.journal import JournalReader, Journals, JournalWriter, resumable
from localpuppet.rollout.rollout_options import Amount, OnFailure, PauseAfter, RolloutOptions
from localpuppet.rollout.rollout_report import RUNNING
from tests.rigs.node import PATIENCE, REPOSITORY
from tests.rollout.killed_beginnings import BEGAN, ELSEWHERE, MOST, WAYS
from tests.rollout.make import (
    AT,
    ID,
    began,
    node,
    rollout_over,
    rollout_stopped,
    run_ended,
    runs_started,
)

EVENTS: list[Event] = [
    RolloutBegan(
        id=ID,
        caller="choria=alice",
        groups=((node(1), node(2)), (node(2),)),
        options=RolloutOptions(
            canary=1,
            batch=Amount.parse("25%", what=""),
            max_failures=Amount.parse("0", what="", minimum=0),
            checks=("http://%{node}/", ("/bin/probe", "x y")),
            tags=("a", "b"),
            timeout=60.0,
            skip_unready=True,
            on_failure=OnFailure.PAUSE,
            pause=(PauseAfter.GROUPS,),
            pause_at_most=60.0,
            investigate=7200.0,
            one_at_a_time_by="zone",
            until=datetime(2026, 11, 23, 6, tzinfo=UTC),
        ),
        places={node(1): "ams", node(2): "lon"},
        checks={NodeRun(1, node(2)): ("http://%{node}/", ("/bin/probe", "%{node}"))},
        title="shop",
        consumers={node(1): (node(2),)},
        parent=RolloutId("20261122T100000Z-0000"),
    ),
    RolloutResumed(),
    LastRunsReported(durations={node(1): (12.5, 10.0)}),
    NodesSkipped(reasons={node(1): "on hold"}),
    runs_started(NodeRun(1, node(2))),
    run_ended(NodeRun(1, node(2)), NodeResult.FAILED, outcome="failed", run="r", reason="exit 1"),
    ChecksEnded(node_run=NodeRun(1, node(2)), problem="check http://a/: answered 503"),
    ChecksEnded(node_run=NodeRun(2, node(2))),
    RolloutPaused(
        reason="before group 2", point="before group 2", since=datetime(2026, 11, 22, tzinfo=UTC)
    ),
    RolloutPaused(reason="1 node failed"),
    RolloutContinued(caller="choria=bob"),
    rollout_stopped(RolloutEnding.FAILED, "1 node failed"),
    RolloutTakenOver(caller="choria=bob", epoch=3, since=datetime(2026, 11, 22, 12, tzinfo=UTC)),
    RolloutEnded(
        ending=RolloutEnding.FAILED,
        reason="1 node failed",
        still_held={node(2): "did not answer"},
        held_for_investigation=(node(1),),
    ),
]


@pytest.fixture
def journals(tmp_path: Path) -> Journals:
    return Journals(tmp_path / "rollouts")


def test_written_events_are_read(journals: Journals) -> None:
    first, *others = EVENTS
    assert isinstance(first, RolloutBegan)
    journal = journals.begin(first, at=AT)
    for event in others:
        journal.append(event, at=AT)
    journal.close()
    assert journals.open(None).events() == [(AT, event) for event in EVENTS]
    assert journals.open(ID).state().epoch == 2


def test_only_a_single_process_can_take_a_rollout(journals: Journals) -> None:
    journal = journals.begin(began([1]), at=AT)
    assert journals.open(ID).taken
    with pytest.raises(BusyError, match="another process"):
        journals.take(ID)
    journal.close()
    journals.take(ID).close()
    assert not journals.open(ID).taken


def test_commands_are_received_once_and_forgotten_with_the_process(journals: Journals) -> None:
    journal = journals.begin(began([1]), at=AT)
    assert journal.commands_after(0) == []
    journals.open(ID).say(RolloutCommand.CONTINUE, "bob")
    journals.open(ID).say(RolloutCommand.APPROVE, "carol", "n01.example.com 0123")
    ((number, *first), second) = journal.commands_after(0)
    assert first == [RolloutCommand.CONTINUE, "bob", ""]
    assert journal.commands_after(number) == [second]
    assert second[1:] == (RolloutCommand.APPROVE, "carol", "n01.example.com 0123")
    journal.forget_commands()
    assert journal.commands_after(0) == []
    journals.open(ID).say(RolloutCommand.STOP, "bob")
    assert journal.commands_after(second[0]) != [], "numbers go up"
    journal.close()


class ReaderOfAnEnd(JournalReader):
    """Reads a journal whose rollout ends after the events were read."""

    def __init__(self, written: JournalWriter) -> None:
        super().__init__(written.path)
        self._written = written

    def events(self) -> list[tuple[str, Event]]:
        events = super().events()
        self._written.append(rollout_over(), at=AT)
        self._written.close()
        return events


def test_a_rollout_that_ends_while_it_is_read_was_not_interrupted(journals: Journals) -> None:
    journal = journals.begin(began([1]), at=AT)
    assert ReaderOfAnEnd(journal).report().word == RUNNING
    assert journals.open(ID).report().word == RolloutEnding.DONE


def test_a_finished_rollout_or_that_of_another_caller_cannot_be_resumed(journals: Journals) -> None:
    journal = journals.begin(began([1]), at=AT)
    assert resumable(journal, "choria=alice").id == ID
    with pytest.raises(InvalidInputError, match="is a rollout of choria=alice"):
        resumable(journal, "choria=bob")
    journal.append(rollout_over(RolloutEnding.STOPPED), at=AT)
    assert resumable(journal, "choria=alice").id == ID
    journal.append(rollout_over(), at=AT)
    with pytest.raises(
        InvalidInputError, match=r"is over: done .*the node that did not .* 1 of them"
    ):
        resumable(journal, "choria=alice")
    journal.close()


def test_events_have_named_fields_in_json() -> None:
    turn = NodeRun(1, node(1))
    changes = PredictedChanges(release="shop/tags/r1", total=0, changes=())
    end = run_ended(turn, NodeResult.UNRESPONSIVE, predicted_changes=changes)
    assert json.loads(json.dumps(to_dict(end))) == {
        "event": "node_run_ended",
        "node_run": [1, node(1)],
        "result": "unresponsive",
        "outcome": "",
        "run": None,
        "reason": "",
        "entry": None,
        "predicted_changes": {"release": "shop/tags/r1", "total": 0, "changes": []},
    }
    over = RolloutEnded(
        ending=RolloutEnding.ROLLED_BACK,
        reason="rolled back by bob",
        still_held={node(1): "did not answer"},
        held_for_investigation=(node(2),),
    )
    assert json.loads(json.dumps(to_dict(over))) == {
        "event": "rollout_ended",
        "ending": "rolled back",
        "reason": "rolled back by bob",
        "still_held": {node(1): "did not answer"},
        "held_for_investigation": [node(2)],
    }


@pytest.mark.parametrize(
    "text",
    [
        '{"event": "exploded"}',
        '{"event": "node_runs_started", "node_runs": [[1]]}',
        '{"event": "nodes_skipped", "reasons": {"NO NAME": "x"}}',
        "[]",
        '{"event": "node_run_ended", "node_run": [1, "a.example.com"], "result": "bored"}',
    ],
)
def test_an_invalid_event_is_an_error(text: str) -> None:
    with pytest.raises(StateError, match="this version does not know"):
        from_dict(loads(text))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("batch", "0", "must be 1 or more"),
        ("batch", 5, "options.batch"),
        ("max_failures", "-1", "is not a number of nodes"),
        ("timeout", float("inf"), "must be a number"),
        ("checks", ["ftp://a/"], "options.checks"),
        ("tags", "ab", "must be a list"),
    ],
)
def test_an_option_keeps_its_limits_in_a_journal(key: str, value: object, message: str) -> None:
    raw = json.loads(json.dumps(to_dict(EVENTS[0])))
    raw["options"][key] = value
    with pytest.raises(StateError, match=message):
        from_dict(raw)


def test_the_entry_of_a_node_run_is_the_nodes_own() -> None:
    entry = AwaitedEntry(node=node(2), digest="a" * 64, at=1.0)
    end = run_ended(NodeRun(1, node(2)), entry=entry)
    raw = json.loads(json.dumps(to_dict(end)))
    assert from_dict(raw) == end
    raw["entry"]["node"] = node(1)
    with pytest.raises(StateError, match="its entry is of"):
        from_dict(raw)


def test_a_damaged_journal_is_an_error_with_its_place(journals: Journals, tmp_path: Path) -> None:
    journal = journals.begin(began([1]), at=AT)
    journal.close()
    path = tmp_path / "rollouts" / f"{ID}.sqlite"
    database = Database(path, Format(tables="", version=2), damaged="")
    with database.transaction() as connection:
        connection.execute("UPDATE events SET event = '{'")
    database.close()
    with pytest.raises(StateError, match=f"{ID}.sqlite: holds a damaged event"):
        journals.open(ID).state()
    path.write_bytes(b"x" * 5000)
    with pytest.raises(StateError, match="is damaged"):
        journals.open(ID).state()


@pytest.mark.parametrize(
    ("number", "cure"), [(1, r"\(format 1\).*move it"), (100, "update localp")]
)
def test_a_journal_of_another_format_is_refused(
    journals: Journals, tmp_path: Path, number: int, cure: str
) -> None:
    journals.begin(began([1]), at=AT).close()
    with closing(sqlite3.connect(tmp_path / "rollouts" / f"{ID}.sqlite")) as connection:
        connection.execute(f"PRAGMA user_version = {number}")
    with pytest.raises(StateError, match=rf"another version of localpuppet.*{cure}"):
        journals.open(ID).events()


def test_ids_sort_by_their_start_also_when_the_clock_is_set_back() -> None:
    now = datetime(2026, 11, 22, 11, 0, tzinfo=UTC)
    first = RolloutId.of(now, "ffff", None)
    second = RolloutId.of(now, "0000", first)
    third = RolloutId.of(now.replace(hour=1), "0000", second)
    assert first < second < third
    assert RolloutId.parse(third) == third
    with pytest.raises(InvalidInputError):
        RolloutId.parse("../../etc/passwd")


def test_an_unknown_rollout_is_an_error(journals: Journals) -> None:
    assert list(journals.ids()) == []
    with pytest.raises(InvalidInputError, match="this machine has no rollout"):
        journals.open(None)
    journals.begin(began([1]), at=AT).close()
    with pytest.raises(
        InvalidInputError, match="this machine has no rollout 20261122T110000Z-ffff"
    ):
        journals.open(RolloutId("20261122T110000Z-ffff"))


def test_old_journals_go_but_not_new_or_running_ones(journals: Journals, tmp_path: Path) -> None:
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
def test_a_killed_start_leaves_its_first_event_or_no_journal(way: str, tmp_path: Path) -> None:
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


def test_a_journal_that_was_removed_is_not_created(journals: Journals, tmp_path: Path) -> None:
    journals.begin(BEGAN, at=AT).close()
    journal = journals.open(ID)
    shutil.rmtree(tmp_path / "rollouts")
    with pytest.raises(StateError, match="is not there"):
        journal.events()
    assert list(journals.ids()) == []
