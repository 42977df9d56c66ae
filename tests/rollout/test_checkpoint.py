"""A checkpoint of a rollout: its progress or its result, and what the reader rejects."""

import json
import zlib

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.rollout.checkpoints import RolloutCheckpoint, Summary
from localpuppet.rollout.events import Event, NodeRun, NodeRunsStarted, RolloutResumed
from tests.rollout.simulated import ID, began, node

AT = "2026-11-22T11:00:00.000000Z"
CALLER = "choria=alice"
FIRST = began([1], [2])


@pytest.mark.parametrize(
    "lie",
    [
        {"counts": {"done": -1}},
        {"counts": {"done": True}},
        {"counts": {"<script>": 1}},
        {"counts": [["succeeded", 1]]},
        {"ending": "well"},
        {"finished_at": "yesterday"},
        {"started_at": "0001-01-01T00:00:00+14:00"},
        {"noop": 1},
        {"title": 7},
    ],
)
def test_a_summary_is_accepted_only_in_its_form(lie: dict[str, object]) -> None:
    raw = {"title": "t" * 999, "ending": "done", "reason": "a\nb", "started_at": AT}
    told = {**raw, "finished_at": AT, "noop": False, "counts": {"done": 3}, "release": ""}
    whole = {"schema": 1, "rollout": ID, "epoch": 1, "over": True, "events": [], "summary": told}

    def parsed(payload: dict[str, object]) -> Summary | None:
        data = zlib.compress(json.dumps(payload).encode())
        return RolloutCheckpoint.parse(data, caller=CALLER).summary

    summary = parsed(whole)
    assert summary is not None
    assert (len(summary.title), "\n" in summary.reason, summary.succeeded) == (200, False, True)
    assert parsed({**whole, "summary": None}) is None
    for contradiction in ({"summary": {**told, **lie}}, {"over": False}, {"over": "no"}):
        with pytest.raises(InvalidInputError, match="rollout checkpoint: is malformed"):
            parsed({**whole, **contradiction})


@pytest.mark.parametrize(
    ("at", "event"),
    [
        ("yesterday", NodeRunsStarted(node_runs=(NodeRun(1, node(1)),))),
        ("9999-12-31T23:59:59-14:00", NodeRunsStarted(node_runs=(NodeRun(1, node(1)),))),
        (AT, NodeRunsStarted(node_runs=(NodeRun(1, node(7)),))),
    ],
)
def test_a_checkpoint_with_impossible_events_is_rejected(at: str, event: Event) -> None:
    def parsed(*events: tuple[str, Event]) -> RolloutCheckpoint:
        told = RolloutCheckpoint(rollout=ID, epoch=1, events=((AT, FIRST), *events))
        return RolloutCheckpoint.parse(told.to_payload(), caller=FIRST.caller)

    assert parsed().events == ((AT, FIRST),)
    with pytest.raises(InvalidInputError, match="rollout checkpoint: is malformed"):
        parsed((at, event))


def test_a_number_that_has_no_value_is_no_epoch() -> None:
    told = RolloutCheckpoint(
        rollout=ID, epoch=1, events=((AT, FIRST), (AT, RolloutResumed(epoch=2)))
    )
    raw = json.dumps(json.loads(zlib.decompress(told.to_payload())))
    assert raw.count('"epoch": 2') == 1
    hostile = raw.replace('"epoch": 2', '"epoch": 1e999').encode()
    with pytest.raises(InvalidInputError, match="rollout checkpoint: is malformed"):
        RolloutCheckpoint.parse(zlib.compress(hostile), caller=FIRST.caller)


@pytest.mark.parametrize(("epoch", "resumed"), [(0, 1), (-1, 1), (2**70, 1), (100_000, 1), (2, 3)])
def test_a_checkpoint_with_an_epoch_that_nodes_refuse_is_rejected(epoch: int, resumed: int) -> None:
    """Its caller would resume in the next epoch, which all nodes refuse for ever."""

    def parsed(epoch: int, resumed: int) -> RolloutCheckpoint:
        events = ((AT, FIRST), (AT, RolloutResumed(epoch=resumed)))
        told = RolloutCheckpoint(rollout=ID, epoch=epoch, events=events)
        return RolloutCheckpoint.parse(told.to_payload(), caller=FIRST.caller)

    assert parsed(3, 3).epoch == 3
    with pytest.raises(InvalidInputError, match="rollout checkpoint: is malformed"):
        parsed(epoch, resumed)
