"""The journal on disk: it has each event with its author, and tells each kind of event apart."""

import json
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
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
    NodeRunEnded,
    NodeRunsStarted,
    NodesSkipped,
    RolloutBegan,
    RolloutContinued,
    RolloutEnded,
    RolloutEnding,
    RolloutPaused,
    RolloutResumed,
    RolloutStopped,
    RolloutTakenOver,
    from_dict,
    to_dict,
)
from localpuppet.rollout.journal import JournalReader, Journals, JournalWriter, resumable
from localpuppet.rollout.rollout_options import Amount, OnFailure, PauseAfter, RolloutOptions
from localpuppet.rollout.rollout_report import RUNNING
from tests.rollout.simulated import ID, began, node

AT = "2026-11-22T11:00:00.000000Z"
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
    NodeRunsStarted(node_runs=(NodeRun(1, node(2)),)),
    NodeRunEnded(
        node_run=NodeRun(1, node(2)),
        result=NodeResult.FAILED,
        outcome="failed",
        run="r",
        reason="exit 1",
    ),
    ChecksEnded(node_run=NodeRun(1, node(2)), problem="check http://a/: answered 503"),
    ChecksEnded(node_run=NodeRun(2, node(2))),
    RolloutPaused(
        reason="before group 2", point="before group 2", since=datetime(2026, 11, 22, tzinfo=UTC)
    ),
    RolloutPaused(reason="1 node failed"),
    RolloutContinued(caller="choria=bob"),
    RolloutStopped(ending=RolloutEnding.FAILED, reason="1 node failed"),
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
        self._written.append(
            RolloutEnded(ending=RolloutEnding.DONE, reason="", still_held={}), at=AT
        )
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
    journal.append(RolloutEnded(ending=RolloutEnding.STOPPED, reason="", still_held={}), at=AT)
    assert resumable(journal, "choria=alice").id == ID
    journal.append(RolloutEnded(ending=RolloutEnding.DONE, reason="", still_held={}), at=AT)
    with pytest.raises(
        InvalidInputError, match=r"is over: done .*the node that did not .* 1 of them"
    ):
        resumable(journal, "choria=alice")
    journal.close()


def test_events_have_named_fields_in_json() -> None:
    turn = NodeRun(1, node(1))
    changes = PredictedChanges(release="shop/tags/r1", total=0, changes=())
    end = NodeRunEnded(node_run=turn, result=NodeResult.UNRESPONSIVE, predicted_changes=changes)
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


def test_a_journal_of_an_earlier_format_is_refused(journals: Journals, tmp_path: Path) -> None:
    journals.begin(began([1]), at=AT).close()
    connection = sqlite3.connect(tmp_path / "rollouts" / f"{ID}.sqlite")
    connection.execute("PRAGMA user_version = 1")
    connection.close()
    with pytest.raises(StateError, match=r"another version of localpuppet \(format 1\).*move it"):
        journals.open(ID).events()


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
    end = NodeRunEnded(node_run=NodeRun(1, node(2)), result=NodeResult.SUCCEEDED, entry=entry)
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


def test_a_journal_of_another_format_is_refused(journals: Journals, tmp_path: Path) -> None:
    journals.begin(began([1]), at=AT).close()
    with closing(sqlite3.connect(tmp_path / "rollouts" / f"{ID}.sqlite")) as connection:
        connection.execute("PRAGMA user_version = 100")
    with pytest.raises(StateError, match=r"another version of localpuppet.*update localpuppet"):
        journals.open(ID).state()


def test_ids_sort_by_their_start_also_when_the_clock_is_set_back() -> None:
    now = datetime(2026, 11, 22, 11, 0, tzinfo=UTC)
    first = RolloutId.of(now, "ffff", None)
    second = RolloutId.of(now, "0000", first)
    third = RolloutId.of(now.replace(hour=1), "0000", second)
    assert first < second < third
    assert RolloutId.parse(third) == third
    with pytest.raises(InvalidInputError):
        RolloutId.parse("../../etc/passwd")
