"""A word in the journal of this machine: it is said to be done when the process has done it."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.rollout.execution.events import Ending, Event, Over, Paused, Stopped
from localpuppet.rollout.execution.journal import Journal
from localpuppet.rollout.execution.journals import Journals
from localpuppet.rollout.execution.state import State
from localpuppet.rollout.execution.words.saying_here import say_here
from localpuppet.rollout.execution.words.word import Said, Word, identify_pause, meaning
from tests.doubles.simulated_loop import run_simulated
from tests.rollout.execution.simulated import ID, began

AT = "2026-11-22T11:00:00.000000Z"
PAUSED = Paused(why="1 node failed")
ABOUT = identify_pause(State.of([began([1], [2]), PAUSED]))
GO_ON = Said(word=Word.CONTINUE, caller="choria=alice", machine="pc", about=ABOUT)
HEARD = meaning(GO_ON, State(began([1])))
STOPPED = Stopped(ending=Ending.STOPPED, why="stopped by choria=bob on laptop")


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    """Return the journal of a rollout that waits, which this process goes on with."""
    found = Journals(tmp_path).begin(began([1], [2]), at=AT)
    found.append(PAUSED, at=AT)
    return found


def said_while(journal: Journal, later: Callable[[], None]) -> None:
    """Say it, while something happens a second later."""

    async def work() -> None:
        saying = asyncio.create_task(say_here(journal, GO_ON))
        await asyncio.sleep(1)
        assert not saying.done()
        assert [one[1:] for one in journal.said(0)] == [(Word.CONTINUE, "choria=alice", ABOUT)]
        later()
        await saying

    run_simulated(work())


def test_a_word_is_done_when_the_journal_says_so(journal: Journal) -> None:
    def more() -> None:
        journal.append(HEARD, Over(ending=Ending.DONE, why="", left={}), at=AT)
        journal.close()

    said_while(journal, more)


@pytest.mark.parametrize(
    ("event", "problem"), [(STOPPED, "is ending already"), (HEARD, "")], ids=["other", "own"]
)
def test_of_two_people_who_decide_each_is_told_who_did(
    journal: Journal, event: Event, problem: str
) -> None:
    def decided() -> None:
        journal.append(event, at=AT)

    if problem:
        with pytest.raises(InvalidInputError, match=problem):
            said_while(journal, decided)
    else:
        said_while(journal, decided)


def test_who_does_not_hear_has_not_agreed(journal: Journal) -> None:
    with pytest.raises(UnavailableError, match="did not receive the command within 60 s"):
        said_while(journal, lambda: None)
    with pytest.raises(
        UnavailableError, match=f"ended before it received the command.*resume {ID}"
    ):
        run_simulated(ended(journal))
    run_simulated(refused(journal))


async def ended(journal: Journal) -> None:
    journal.forget_words()
    journal.close()
    await say_here(journal, GO_ON)


async def refused(journal: Journal) -> None:
    journal.append(STOPPED, at=AT)
    with pytest.raises(InvalidInputError, match="is ending already"):
        await say_here(journal, GO_ON)
