"""The rollout in a request."""

import json
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import RolloutId
from localpuppet.fleet.requests.arguments import (
    RolloutReference,
    RolloutStep,
    StatusRequest,
    step_uuid,
)
from localpuppet.fleet.requests.request import Disable, Enable, Request, RunOnce
from tests.fleet.requests.test_request import claims, parse

ID = "20261122T110000Z-0a1b"
GOOD: dict[str, Any] = {"id": ID, "epoch": 1}
HOLD: dict[str, Any] = {"message": "m", "for": "10m", "rollout": GOOD}


@pytest.mark.parametrize(
    ("action", "args"),
    [
        (
            "disable",
            Disable(message="m", length="24h", rollout=RolloutReference(id=RolloutId(ID), epoch=3)),
        ),
        ("enable", Enable(rollout=RolloutReference(id=RolloutId(ID), epoch=3))),
        ("enable", Enable()),
        (
            "runonce",
            RunOnce(noop=True, rollout=RolloutStep(id=RolloutId(ID), epoch=3, step=9)),
        ),
        (
            "enable",
            Enable(rollout=RolloutReference(id=RolloutId(ID), epoch=3, caller="choria=alice")),
        ),
        ("status", StatusRequest(may=("runonce", "log", "takeover"))),
        ("status", StatusRequest()),
    ],
)
def test_rollout_arguments_are_encoded_and_parsed(action: str, args: Any) -> None:
    asked = parse(action=action, args=args.to_dict())
    assert asked.args == args
    assert Request.parse(json.dumps(asked.to_dict()).encode()) == asked


@pytest.mark.parametrize(
    ("action", "args", "message"),
    [
        ("disable", HOLD | {"for": "25h"}, "request.args.for: a rollout's hold is not for up to"),
        ("disable", {"message": "m", "rollout": GOOD}, "a rollout's hold is not for up to 86400 s"),
        ("disable", HOLD | {"rollout": GOOD | {"step": 1}}, "rollout: unknown key 'step'"),
        ("enable", {"rollout": {"id": "x", "epoch": 1}}, "rollout.id: 'x' is not a rollout's id"),
        ("enable", {"rollout": {"id": ID, "epoch": 0}}, "rollout.epoch: is 0"),
        ("runonce", {"rollout": GOOD}, "step"),
        ("enable", {"rollout": GOOD | {"caller": "alice"}}, "'alice' is not a caller id"),
        (
            "runonce",
            {"rollout": GOOD | {"step": True}},
            "rollout.step: must be an integer from 1 to 1000000000, not a boolean",
        ),
        ("status", {"may": []}, "may: has 0 elements"),
        ("status", {"may": ["trigger"]}, "the action 'trigger' is unknown"),
    ],
)
def test_invalid_rollout_arguments_are_refused(
    action: str, args: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        Request.parse(json.dumps(claims(action=action, args=args)).encode())
    assert message in str(caught.value)


def test_a_step_has_the_same_id_on_both_sides() -> None:
    assert step_uuid("choria=a/rollout/x", 1) == step_uuid("choria=a/rollout/x", 1)
    others = {step_uuid("choria=a/rollout/x", 2), step_uuid("choria=b/rollout/x", 1)}
    assert len(others | {step_uuid("choria=a/rollout/x", 1)}) == 3
