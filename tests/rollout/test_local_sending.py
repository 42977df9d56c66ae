"""A rollout command by the journal of this machine: it ends when the controller has applied it."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.formats.times import parse_time
from localpuppet.rollout.commands import (
    RolloutCommand,
    SentCommand,
    identify_pause,
    meaning,
    send_here,
)
from localpuppet.rollout.events import (
    Event,
    RolloutEnded,
    RolloutEnding,
    RolloutPaused,
    RolloutStopped,
)
from localpuppet.rollout.journal import Journals, JournalWriter
from localpuppet.rollout.state import RolloutState
from tests.doubles.simulated_loop import run_simulated
from tests.rollout.simulated import ID, began

AT = "2026-11-22T11:00:00.000000Z"
PAUSED = RolloutPaused(reason="1 node failed")
ABOUT = identify_pause(RolloutState.of([began([1], [2]), PAUSED]))
GO_ON = SentCommand(
    command=RolloutCommand.CONTINUE, caller="choria=alice", machine="pc", about=ABOUT
)
HEARD = meaning(GO_ON, RolloutState(began([1])))
STOPPED = RolloutStopped(ending=RolloutEnding.STOPPED, reason="stopped by choria=bob on laptop")


@pytest.fixture
def journal(tmp_path: Path) -> JournalWriter:
    """Return the journal of a rollout that waits in this process."""
    found = Journals(tmp_path).begin(began([1], [2]), at=AT)
    found.append(PAUSED, at=AT)
    return found


def said_while(journal: JournalWriter, later: Callable[[], None]) -> None:
    """Send a command, while something happens a second later."""

    async def work() -> None:
        saying = asyncio.create_task(send_here(journal, GO_ON))
        await asyncio.sleep(1)
        assert not saying.done()
        assert [one[1:] for one in journal.commands_after(0)] == [
            (RolloutCommand.CONTINUE, "choria=alice", ABOUT)
        ]
        later()
        await saying

    run_simulated(work())


def test_a_command_is_done_when_the_journal_has_it(journal: JournalWriter) -> None:
    def more() -> None:
        journal.append(
            HEARD, RolloutEnded(ending=RolloutEnding.DONE, reason="", still_held={}), at=AT
        )
        journal.close()

    said_while(journal, more)


def test_a_pause_is_recorded_with_the_time_that_the_controller_adds(tmp_path: Path) -> None:
    journal = Journals(tmp_path).begin(began([1], [2]), at=AT)
    pause = SentCommand(command=RolloutCommand.PAUSE, caller="choria=alice", machine="pc")
    paused = meaning(pause, RolloutState(began([1])))
    assert isinstance(paused, RolloutPaused)

    async def work() -> None:
        saying = asyncio.create_task(send_here(journal, pause))
        await asyncio.sleep(1)
        journal.append(replace(paused, since=parse_time(AT)), at=AT)
        await saying

    run_simulated(work())


@pytest.mark.parametrize(
    ("event", "problem"), [(STOPPED, "is already ending"), (HEARD, "")], ids=["other", "own"]
)
def test_a_person_whose_command_comes_too_late_learns_who_decided(
    journal: JournalWriter, event: Event, problem: str
) -> None:
    def decided() -> None:
        journal.append(event, at=AT)

    if problem:
        with pytest.raises(InvalidInputError, match=problem):
            said_while(journal, decided)
    else:
        said_while(journal, decided)


def test_a_controller_that_does_not_receive_a_command_is_an_error(journal: JournalWriter) -> None:
    with pytest.raises(UnavailableError, match="did not receive the command within 60 s"):
        said_while(journal, lambda: None)
    with pytest.raises(
        UnavailableError, match=f"ended before it received the command.*resume {ID}"
    ):
        run_simulated(ended(journal))
    run_simulated(refused(journal))


async def ended(journal: JournalWriter) -> None:
    journal.forget_commands()
    journal.close()
    await send_here(journal, GO_ON)


async def refused(journal: JournalWriter) -> None:
    journal.append(STOPPED, at=AT)
    with pytest.raises(InvalidInputError, match="is already ending"):
        await send_here(journal, GO_ON)
