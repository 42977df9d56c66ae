"""The corpus of bad triggers, each against admission and coalescing as the agent uses them.

For each case, `tests/data/bad-inputs.yaml` has whether it is accepted, what the reason names and
how many runs follow. `trigger_seq` is a list of triggers in the order of their arrival; `DISABLE`
and `ENABLE` set and end a hold.
"""

import json
import re
from typing import Any

import pytest

from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.triggers.cause import CauseKind, RunCause
from localpuppet.fleet.triggers.coalescing import Coalescer
from localpuppet.fleet.triggers.trigger_admission import (
    Admission,
    AdmittedTrigger,
    DroppedTrigger,
    UnsignedMessage,
)
from tests.rigs.bad_inputs import CASES

CONTEXT = "node=lb01.example.net now=1795000000 signature valid unless said"
NOW = 1_795_000_000.0
ME = NodeName("lb01.example.net")
UNSIGNED = "signature absent"
BUSY = "a run started before the first and ends after the last"
TIMER = RunCause(
    kind=CauseKind.TIMER,
    sender=ME,
    uuid="00000000-0000-4000-8000-000000000000",
    timestamp=int(NOW),
    expires=None,
)


def cases(kind: str) -> list[Any]:
    return [pytest.param(case, id=case["id"]) for case in CASES if case["kind"] == kind]


class Node:
    """A node that follows the decisions, and counts the runs that begin."""

    def __init__(self) -> None:
        self.coalescer = Coalescer()
        self.seen: dict[str, int] = {}
        self.held: str | None = None
        self.runs = 0

    def receive(self, payload: bytes, *, signed: bool = True) -> AdmittedTrigger | DroppedTrigger:
        """Decide on a message; a true signature is that of the sender that it names."""
        admission = Admission(me=ME, trigger_refusal=lambda _: None, seen=self.seen.__contains__)
        verdict = admission.admit(
            payload,
            now=NOW,
            signer=lambda: (
                str(json.loads(payload)["hostname"])
                if signed
                else UnsignedMessage(reason="it has none")
            ),
        )
        if isinstance(verdict, AdmittedTrigger):
            self.seen[verdict.cause.id] = verdict.remember_until
            assert self.coalescer.problem(verdict.cause) is None
            self.coalescer.accept(verdict.cause)
        return verdict

    def start(self) -> None:
        step = self.coalescer.step(NOW, held=self.held)
        assert step.dropped == ()
        self.runs += step.start is not None

    def finish(self) -> None:
        """End the active run, and those that wait behind it, one after the other."""
        self.start()
        while self.coalescer.running is not None:
            self.coalescer.ended()
            self.start()


def contexts(case: dict[str, Any]) -> set[str]:
    base, _, more = case["context"].partition("; ")
    assert base == CONTEXT
    return {more} - {""}


@pytest.mark.parametrize("case", cases("trigger"))
def test_trigger(case: dict[str, Any]) -> None:
    said = contexts(case)
    assert said <= {UNSIGNED}
    node = Node()
    verdict = node.receive(case["input"].encode(), signed=UNSIGNED not in said)
    node.finish()
    assert node.runs == case["runs"]
    if case["expect"] == "accept":
        assert isinstance(verdict, AdmittedTrigger)
        return
    assert isinstance(verdict, DroppedTrigger)
    assert re.search(case["message"], verdict.reason, re.IGNORECASE), verdict.reason
    assert verdict.reason.isprintable()
    assert verdict.quiet == (case["id"] == "tr-not-for-us")


@pytest.mark.parametrize("case", cases("trigger_seq"))
def test_sequence(case: dict[str, Any]) -> None:
    said = contexts(case)
    assert said <= {BUSY}
    node = Node()
    if BUSY in said:
        node.coalescer.accept(TIMER)
        node.start()
    accepted = 0
    for item in json.loads(case["input"]):
        if item in ("DISABLE", "ENABLE"):
            node.held = "a person wants so" if item == "DISABLE" else None
        else:
            accepted += isinstance(node.receive(json.dumps(item).encode()), AdmittedTrigger)
        if node.held:
            runs = node.runs
            node.start()
            assert node.runs == runs, "no run on hold"
    assert accepted > 0
    assert case["expect"] == "accept"
    node.finish()
    assert node.runs == case["runs"]


def test_every_case_is_used() -> None:
    mine = [case for case in CASES if case["kind"].startswith("trigger")]
    assert {case["kind"] for case in mine} == {"trigger", "trigger_seq"}
    assert len(cases("trigger")) == 14
    assert len(cases("trigger_seq")) == 3
