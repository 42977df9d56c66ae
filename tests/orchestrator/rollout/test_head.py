"""How a rollout ended, as a head tells it."""

import json
import zlib

import pytest

from localpuppet.errors import InvalidInputError
from localpuppet.orchestrator.rollout.head import Head, Summary
from tests.orchestrator.rollout.simulated import ID

AT = "2026-11-22T11:00:00.000000Z"
CALLER = "choria=alice"


@pytest.mark.parametrize(
    "lie",
    [
        {"counts": {"succeeded": -1}},
        {"counts": {"succeeded": True}},
        {"counts": {"<script>": 1}},
        {"counts": [["succeeded", 1]]},
        {"ending": "well"},
        {"ended": "yesterday"},
        {"noop": 1},
        {"title": 7},
    ],
)
def test_how_a_rollout_ended_is_believed_in_its_form_only(lie: dict[str, object]) -> None:
    raw = {"title": "t" * 999, "ending": "done", "why": "a\nb", "began": AT, "ended": AT}
    told = {**raw, "noop": False, "counts": {"succeeded": 3}}
    whole = {"schema": 1, "rollout": ID, "epoch": 1, "over": True, "events": [], "summary": told}

    def parsed(payload: dict[str, object]) -> Summary | None:
        data = zlib.compress(json.dumps(payload).encode())
        return Head.parse(data, caller=CALLER).summary

    summary = parsed(whole)
    assert summary is not None
    assert (len(summary.title), "\n" in summary.why, summary.succeeded) == (200, False, True)
    assert parsed({**whole, "summary": None}) is None
    with pytest.raises(InvalidInputError, match="head of a rollout: is malformed"):
        parsed({**whole, "summary": {**told, **lie}})
