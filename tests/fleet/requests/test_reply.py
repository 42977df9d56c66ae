"""Signed replies: their claims, and the largest result of a run in a reply."""

from dataclasses import replace
from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.values import Json
from localpuppet.fleet.requests.request import NodeReply, RunArguments, answer, ask, read_answer
from localpuppet.node.runs.run_replies import MAX_TOLD
from tests.doubles.identities import person, verifier
from tests.doubles.ports import FakeClock

# tests/node/runs/test_run_replies.py checks that no result is larger.
LARGEST = MAX_TOLD + 32 * 1024


def test_the_largest_result_of_a_run_fits_into_a_reply(tmp_path: Path) -> None:
    clock, node, alice = FakeClock(), person("lb01.example.com"), person("alice")
    request, _ = ask(alice.signer, NodeName("lb01.example.com"), "log", RunArguments(), clock=clock)
    result: dict[str, Json] = {"lines": ["x" * LARGEST]}
    token = answer(node.signer, request, result, clock=clock)
    reply = read_answer(verifier(tmp_path, node), token, request, clock=clock)
    assert reply.result == result


def test_a_reply_has_either_a_result_also_an_empty_one_or_an_error() -> None:
    clock, node, alice = FakeClock(), person("lb01.example.com"), person("alice")
    request, _ = ask(alice.signer, NodeName("lb01.example.com"), "log", RunArguments(), clock=clock)
    claims = NodeReply(
        node=node.signer.name,
        caller=request.caller,
        iat=1,
        exp=2,
        in_reply_to=request.jti,
        ok=True,
        result={},
        error=None,
    )
    assert claims.to_dict()["result"] == {}
    failed = replace(claims, ok=False, error="no such run").to_dict()
    assert "result" not in failed
    assert NodeReply.read(failed).error == "no such run"
    for wrong in (
        failed | {"result": {"a": 1}},
        failed | {"ok": True},
        claims.to_dict() | {"ok": False},
    ):
        with pytest.raises(InvalidInputError, match="either ok and a result, or an error"):
            NodeReply.read(wrong)
