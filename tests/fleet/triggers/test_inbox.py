"""The inbox and its file, which a kill -9 does not make lose a cause, and outcomes of triggers."""

import json
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from localpuppet.base.errors import BusyError, StateError
from localpuppet.fleet.triggers import inbox as step_table
from localpuppet.fleet.triggers.cause import DROPPED, MOST, RunCause, TriggerOutcome, of_run
from localpuppet.fleet.triggers.inbox import Inbox, RolloutCaller
from localpuppet.fleet.trust.seen import Quota
from tests.doubles.ports import FakeClock
from tests.fleet.make import a_cause
from tests.rigs.node import REPOSITORY

WRITER = """
import sys
from pathlib import Path
from localpuppet.fleet.triggers.inbox import Inbox
from tests.doubles.ports import FakeClock
from tests.fleet.triggers.test_inbox import cause
clock = FakeClock()
inbox = Inbox(Path(sys.argv[1]), clock)
until = int(clock.now().timestamp()) + 100
for index in range(1000):
    inbox.accept([(cause(index), until)])
    print(index, flush=True)
    if index % 3 == 2:
        inbox.settle([cause(index).id])
        print(-index, flush=True)
"""


def cause(index: int) -> RunCause:
    return a_cause(uuid=f"00000000-0000-4000-8000-{index:012}", timestamp=index)


@pytest.mark.parametrize("after", [0, 1, 2, 3, 7, 20])
def test_a_kill_between_any_two_steps(tmp_path: Path, after: int) -> None:
    path = tmp_path / "inbox.sqlite"
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    ) as process:
        assert process.stdout is not None
        said = [int(process.stdout.readline()) for _ in range(after + 1)]
        process.send_signal(signal.SIGKILL)
        said += [int(line) for line in process.stdout.read().splitlines()]
    inbox = Inbox(path, FakeClock())
    owed = {found.timestamp for found in inbox.causes()}
    accepted = {index for index in said if index >= 0}
    forgotten = {-index for index in said if index < 0}
    # A step may be on the disk before the process reports it.
    assert accepted - forgotten - owed <= {max(accepted)}
    assert not owed & forgotten
    assert owed - accepted <= {max(accepted) + 1}
    assert all(inbox.seen(cause(index).id) for index in accepted)
    inbox.close()


def test_order_and_ids(tmp_path: Path) -> None:
    clock = FakeClock()
    inbox = Inbox(tmp_path / "agent" / "inbox.sqlite", clock, always=1)
    now = int(clock.now().timestamp())
    inbox.accept([(cause(index), now + 10) for index in (3, 1, 2)])
    inbox.accept([(cause(3), now + 10)])  # again: no second one
    assert [found.timestamp for found in inbox.causes()] == [3, 1, 2]
    inbox.settle([cause(1).id, "unknown"])
    assert [found.timestamp for found in inbox.causes()] == [3, 2]
    assert inbox.seen(cause(1).id), "it may come again"
    clock.advance(11)
    inbox.accept([(cause(4), now + 100)])
    assert not inbox.seen(cause(1).id)
    inbox.close()
    assert (tmp_path / "agent" / "inbox.sqlite").stat().st_mode & 0o777 == 0o600
    assert [found.timestamp for found in inbox.causes()] == [3, 2, 4], "opened again"
    inbox.close()


def test_outcomes_of_the_newest_causes_survive_a_restart(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path / "inbox.sqlite", FakeClock())
    assert inbox.outcomes() == []
    ends = [
        TriggerOutcome.of_cause(cause(index).id, index, run=str(index), outcome="changed")
        for index in range(MOST + 5)
    ]
    for end in ends:
        inbox.settle([f"{end.sender}/{end.uuid}"], [end])
    inbox.close()
    again = Inbox(tmp_path / "inbox.sqlite", FakeClock())
    assert again.outcomes() == ends[5:]
    again.close()


def test_after_a_clock_is_set_back_the_newest_causes_stay_known(tmp_path: Path) -> None:
    clock = FakeClock()
    inbox = Inbox(tmp_path / "inbox.sqlite", clock, always=3)
    until = int(clock.now().timestamp()) + 10
    inbox.accept([(cause(1), until)])
    clock.advance(86400)
    for index in (2, 3):
        inbox.accept([(cause(index), until + 86400)])
    clock.advance(-86400)
    assert inbox.seen(cause(1).id)
    clock.advance(2 * 86400)
    inbox.accept([(cause(4), until + 2 * 86400)])
    assert not inbox.seen(cause(1).id), "it is not one of the newest"
    assert all(inbox.seen(cause(index).id) for index in (2, 3, 4))
    inbox.close()


def test_causes_are_accepted_all_or_none(tmp_path: Path) -> None:
    inbox = Inbox(tmp_path / "inbox.sqlite", FakeClock())
    with pytest.raises(StateError):
        inbox.accept([(cause(1), 5), (cause(2), "soon")])  # type: ignore[list-item]
    assert inbox.causes() == []
    inbox.close()


@pytest.mark.parametrize("text", ["{}", "no JSON", json.dumps({**cause(1).to_dict(), "path": 5})])
def test_a_damaged_cause_is_an_error_and_never_silently_lost(tmp_path: Path, text: str) -> None:
    inbox = Inbox(tmp_path / "inbox.sqlite", FakeClock())
    inbox.accept([(cause(1), 5)])
    inbox.close()
    with sqlite3.connect(tmp_path / "inbox.sqlite") as connection:
        connection.execute("UPDATE causes SET cause = ?", (text,))
    connection.close()
    with pytest.raises(StateError, match=r"inbox\.sqlite: holds a damaged cause"):
        inbox.causes()
    inbox.close()


def test_a_caller_cannot_fill_the_memory_of_steps_for_others(tmp_path: Path) -> None:
    clock = FakeClock()
    inbox = Inbox(tmp_path / "inbox.sqlite", clock, steps=Quota(shared=4, reserve=2, few=2, each=3))
    for epoch in (1, 2, 3):
        inbox.receive_rollout(RolloutCaller(owner=f"choria=mallory/rollout/{epoch}", epoch=epoch))
    refusal = "3 steps of choria=mallory are stored already"
    with pytest.raises(BusyError, match=refusal):
        inbox.receive_rollout(RolloutCaller(owner="choria=mallory/rollout/4", epoch=1))
    mine = replace(cause(1), sender="choria=alice/rollout/1")
    ours = RolloutCaller(owner=mine.sender, epoch=1)
    assert inbox.step(mine, 1, voice=ours, problem=lambda: None)[1]
    with pytest.raises(BusyError, match=refusal):
        theirs = replace(cause(2), sender="choria=mallory/rollout/1")
        voice = RolloutCaller(owner=theirs.sender, epoch=1)
        inbox.step(theirs, 1, voice=voice, problem=lambda: None)
    clock.advance(step_table.KEPT + 1)
    inbox.receive_rollout(RolloutCaller(owner="choria=mallory/rollout/4", epoch=1))
    inbox.close()


ME = "a.example.com"


def one(uuid: str = "1", timestamp: int = 10, outcome: str = "changed") -> TriggerOutcome:
    return TriggerOutcome(sender=ME, uuid=uuid, timestamp=timestamp, run="r", outcome=outcome)


def test_its_json_form() -> None:
    assert TriggerOutcome.of_published(one().to_dict()) == one()
    assert TriggerOutcome.of_cause("choria=a/1", 5, run=None, outcome="x").sender == "choria=a"


@pytest.mark.parametrize(
    "raw",
    [
        *(None, [], {}, "x"),
        {**one().to_dict(), "timestamp": "1"},
        {**one().to_dict(), "run": 1},
        {key: value for key, value in one().to_dict().items() if key != "run"},
    ],
)
def test_another_form_is_passed_over(raw: object) -> None:
    assert TriggerOutcome.of_published(raw) is None


@pytest.mark.parametrize(
    ("told", "answers", "idle"),
    [
        (one("mine"), True, True),
        (one("mine", outcome=DROPPED), True, True),
        (one("later", timestamp=11), True, True),
        (one("later", timestamp=11, outcome=DROPPED), False, False),
        # Of the same second: an idle node has run for this trigger, too.
        (one("other", timestamp=9), False, True),
        (one("other", timestamp=10), False, True),
        (one("other", timestamp=10, outcome=DROPPED), False, False),
        (one("earlier", timestamp=8), False, False),
        (TriggerOutcome(sender="b", uuid="mine", timestamp=11, run=None, outcome="x"), False,
         False),
    ],
)  # fmt: skip
def test_an_outcome_answers_its_trigger_and_earlier_ones_of_its_sender(
    told: TriggerOutcome, answers: bool, idle: bool
) -> None:
    for is_idle, expected in ((False, answers), (True, idle)):
        assert told.answers(sender=ME, uuid="mine", sent=range(9, 11), idle=is_idle) is expected


def test_outcomes_name_the_newest_cause_of_each_sender() -> None:
    sent = {f"s{index % 4}/{index}": index for index in range(1000)}
    sent["s9/early"] = 1
    found = of_run(sent, run="r", outcome="changed")
    assert len(found) == MOST
    newest = {told.sender: told for told in found}
    times = {sender: told.timestamp for sender, told in newest.items()}
    assert times == {"s0": 996, "s1": 997, "s2": 998, "s3": 999, "s9": 1}
    assert of_run({}, run=None, outcome="x") == []
