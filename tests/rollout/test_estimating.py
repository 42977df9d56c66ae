"""The estimate of the remaining time of a rollout."""

from dataclasses import replace

import pytest

from localpuppet.rollout.events import (
    LastRunsReported,
    NodeResult,
    NodeRun,
    NodeRunEnded,
    NodeRunsStarted,
    RolloutEnding,
    RolloutStopped,
)
from localpuppet.rollout.rollout_options import Amount
from localpuppet.rollout.rollout_view import seconds_left
from localpuppet.rollout.state import RolloutState
from tests.rollout.simulated import began, node

LASTED = LastRunsReported(durations={node(n): (1000.0, 10.0 * n, 0.0) for n in range(1, 6)})


def rollout(*groups: list[int], **options: object) -> RolloutState:
    state = RolloutState(began(*groups, **options))
    state.take(LASTED)
    return state


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({}, 40 + 50),
        ({"batch": Amount.parse("2", what="")}, 20 + 40 + 50),
        ({"batch": Amount.parse("2", what=""), "canary": 1}, 10 + 30 + 40 + 50),
        ({"window": 2}, 50 + 50),
        ({"window": 4}, 40 + 50),
        ({"window": 1, "canary": 2}, 20 + 70 + 50),
    ],
)
def test_the_estimate_uses_the_medians_of_the_remaining_runs(
    options: dict[str, object], seconds: float
) -> None:
    assert seconds_left(rollout([1, 2, 3, 4], [5], **options)) == seconds


def test_the_times_of_places_add_up() -> None:
    state = RolloutState(
        replace(began([1, 2, 3, 4]), places={node(n): str(n % 2) for n in range(1, 5)})
    )
    state.take(LASTED)
    assert seconds_left(state) == 40 + 30


def test_ended_runs_take_no_time_and_an_unknown_duration_has_no_estimate() -> None:
    state = rollout([1, 2], [5])
    state.take(NodeRunsStarted(node_runs=(NodeRun(1, node(2)),)))
    assert seconds_left(state) == 20 + 50
    state.take(NodeRunEnded(node_run=NodeRun(1, node(2)), result=NodeResult.SUCCEEDED))
    assert seconds_left(state) == 10 + 50
    assert seconds_left(rollout([1, 6], [5])) is None
    state.take(RolloutStopped(ending=RolloutEnding.STOPPED, reason=""))
    assert seconds_left(state) is None
