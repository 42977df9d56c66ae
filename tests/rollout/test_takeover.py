"""An overtaken controller: what it concludes from a node's reply that names the new controller."""

from datetime import UTC, datetime

import pytest

from localpuppet.base.errors import BusyError
from localpuppet.base.formats.values import Json
from localpuppet.fleet.requests.arguments import RolloutReference, StatusRequest
from localpuppet.fleet.requests.request import Arguments, Enable
from localpuppet.fleet.requests.request_client import NodeAnswer
from localpuppet.rollout.events import RolloutTakenOver
from localpuppet.rollout.resuming import heed_refusal
from tests.rollout.answering import Client, replied
from tests.rollout.simulated import ID, began, node

AT = "2026-11-22T11:00:00.000000Z"
MINE = Enable(rollout=RolloutReference(id=ID, epoch=2))
TAKEN = Enable(rollout=RolloutReference(id=ID, epoch=2, caller="choria=alice"))


class TakeoverRecorder:
    """Records the takeovers that it has to verify.

    Args:
        believed: Whether it trusts them.
    """

    def __init__(self, *, believed: bool = True) -> None:
        self.believed = believed
        self.words: list[RolloutTakenOver] = []

    async def believes(self, found: RolloutTakenOver) -> bool:
        self.words.append(found)
        return self.believed


def spoken(epoch: Json = 3, by: Json = "choria=bob", since: Json = AT) -> NodeAnswer:
    return replied({"rollout_controller": {"epoch": epoch, "by": by, "since": since}})


async def heed(
    recorder: TakeoverRecorder,
    answer: NodeAnswer | None,
    args: Arguments = MINE,
    *,
    me: str = "choria=alice",
) -> Client:
    """Have the controller check the refusal of a node in epoch 2; return the client."""
    client = Client(answer)
    client.whose = me
    await heed_refusal(client, began([1]), recorder.believes, node(1), args)
    return client


@pytest.mark.parametrize(
    ("answer", "args", "me", "who"),
    [
        (spoken(), MINE, "choria=alice", "choria=bob"),
        (spoken(epoch=2), MINE, "choria=alice", "choria=bob"),
        (spoken(by=""), MINE, "choria=alice", "choria=alice"),  # from another machine
        (spoken(by=""), TAKEN, "choria=carol", "choria=alice"),
        (spoken(epoch=2), TAKEN, "choria=carol", "choria=bob"),
    ],
)
async def test_a_trusted_takeover_reported_by_a_node_ends_this_controller(
    answer: NodeAnswer, args: Arguments, me: str, who: str
) -> None:
    recorder = TakeoverRecorder()
    with pytest.raises(BusyError) as caught:
        await heed(recorder, answer, args, me=me)
    (word,) = recorder.words
    assert (word.caller, word.since) == (who, datetime(2026, 11, 22, 11, tzinfo=UTC))
    assert str(caught.value) == (
        f"rollout {ID} was taken over by {who} at 2026-11-22 11:00:00 UTC: later events are in"
        " that controller's journal"
    )


@pytest.mark.parametrize(
    ("answer", "args", "me"),
    [
        (spoken(epoch=1), MINE, "choria=alice"),
        (spoken(epoch=2, by=""), MINE, "choria=alice"),
        (spoken(epoch=2), TAKEN, "choria=bob"),
        (spoken(by="bob\x1b[2J"), MINE, "choria=alice"),
        (spoken(since="soon"), MINE, "choria=alice"),
        (spoken(epoch="3"), MINE, "choria=alice"),
        (replied({"rollout_controller": []}), MINE, "choria=alice"),
        (replied({"rollout_controller": {}}), MINE, "choria=alice"),
        (replied({"state": "idle"}), MINE, "choria=alice"),
        (replied("rollout: is an unknown argument"), MINE, "choria=alice"),
        (NodeAnswer(reply=None, problem="did not answer"), MINE, "choria=alice"),
        (None, MINE, "choria=alice"),
    ],
)
async def test_any_other_refusal_is_that_of_its_node(
    answer: NodeAnswer | None, args: Arguments, me: str
) -> None:
    recorder = TakeoverRecorder()
    client = await heed(recorder, answer, args, me=me)
    assert recorder.words == []
    ((action, asked),) = client.asked
    assert (action, isinstance(asked, StatusRequest)) == ("status", True)


async def test_a_rejected_report_of_a_takeover_ends_nothing() -> None:
    recorder = TakeoverRecorder(believed=False)
    await heed(recorder, spoken())
    assert len(recorder.words) == 1


async def test_replies_about_other_things_are_ignored() -> None:
    for args in (Enable(), StatusRequest(rollout=RolloutReference(id=ID, epoch=1))):
        assert (await heed(TakeoverRecorder(), spoken(), args)).asked == []
