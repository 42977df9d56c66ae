"""What a rollout command results in, and when it comes too late."""

import asyncio

import pytest

from localpuppet.base.formats.names import ReleasePath
from localpuppet.rollout.commands import (
    RolloutCommand,
    SentCommand,
    identify_pause,
    meaning,
    refusal,
)
from localpuppet.rollout.events import (
    Event,
    RolloutEnded,
    RolloutEnding,
    RolloutPaused,
    RolloutStopped,
)
from localpuppet.rollout.rollout_options import Delivery, OnFailure
from localpuppet.rollout.state import RolloutState
from tests.doubles.simulated_loop import run_simulated
from tests.rollout.simulated import Notes, SimulatedNodes, began, new, node, words

RELEASE = Delivery(release=ReleasePath("shop/tags/r7"))
PAUSED = RolloutPaused(reason="1 node failed")


def said(command: RolloutCommand, about: str = "") -> SentCommand:
    return SentCommand(command=command, caller="choria=bob", machine="laptop", about=about)


GOES_ON = meaning(said(RolloutCommand.CONTINUE), RolloutState(began([1])))


@pytest.mark.parametrize(
    ("command", "events", "reason"),
    [
        (RolloutCommand.STOP, [], ""),
        (RolloutCommand.CONTINUE, [], "is not paused"),
        (RolloutCommand.CONTINUE, [PAUSED, GOES_ON], "is not paused"),
        (RolloutCommand.PAUSE, [], ""),
        (RolloutCommand.PAUSE, [PAUSED], "is already paused: 1 node failed"),
        (RolloutCommand.APPROVE, [PAUSED], "the approval names no node"),
        (RolloutCommand.ROLLBACK, [PAUSED], "delivers no release"),
        (
            RolloutCommand.STOP,
            [RolloutStopped(ending=RolloutEnding.FAILED, reason="x")],
            "is already ending: x",
        ),
        (
            RolloutCommand.STOP,
            [RolloutEnded(ending=RolloutEnding.DONE, reason="", still_held={})],
            "is over: done",
        ),
    ],
)
def test_a_command_can_be_too_late(
    command: RolloutCommand, events: list[Event], reason: str
) -> None:
    found = refusal(said(command), RolloutState.of([began([1]), *events]))
    assert found.startswith(reason) if reason else not found


def test_continue_ends_the_pause_that_its_sender_saw_and_no_other() -> None:
    """A later pause is another one, also if its reason is the same."""
    once = RolloutState.of([began([1]), PAUSED])
    seen = said(RolloutCommand.CONTINUE, identify_pause(once))
    assert refusal(seen, once) == ""
    for other in (PAUSED, RolloutPaused(reason="2 nodes failed")):
        later = RolloutState.of([began([1]), PAUSED, GOES_ON, other])
        assert refusal(seen, later).startswith("paused again since then")
        assert refusal(said(RolloutCommand.CONTINUE), later).startswith("paused again since then")
        assert refusal(said(RolloutCommand.CONTINUE, identify_pause(later)), later) == ""


@pytest.mark.parametrize("paused", [True, False])
def test_a_rollback_command_rolls_back_the_nodes_with_the_release(paused: bool) -> None:
    """Also if the options do not roll back on failures; a later command is rejected."""
    first = began(
        [1, 2],
        [3],
        [4],
        delivery=RELEASE,
        on_failure=OnFailure.PAUSE if paused else OnFailure.STOP,
    )

    async def work() -> None:
        bad = {node(3)} if paused else set()
        notes, nodes = Notes(), SimulatedNodes(bad=bad, back=4, seconds={node(3): 100})
        rollout = new(first, nodes, notes)
        doing = asyncio.create_task(rollout.run(resume=False))
        await asyncio.sleep(200 if paused else 50)
        assert rollout.state.waits is paused
        notes.words += [
            (RolloutCommand.ROLLBACK, "choria=bob"),
            (RolloutCommand.CONTINUE, "choria=carol"),
        ]
        over = await doing
        assert (over.ending, over.reason) == (
            RolloutEnding.ROLLED_BACK,
            "rolled back by choria=bob on pc",
        )
        assert words(rollout.state) == ["rolled back"] * 3 + ["not reached"]
        assert notes.refused[0] == ""
        assert notes.refused[1].startswith("is already ending")
        assert (nodes.held, rollout.state.resumable) == (set(), False)

    run_simulated(work())
