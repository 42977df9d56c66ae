"""Signed replies: the largest result of a run in a reply."""

from pathlib import Path

from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.values import Json
from localpuppet.fleet.requests.messages import answer, ask, read_answer
from localpuppet.fleet.requests.request import RunArguments
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
