"""Requests end to end: real keys, real signatures, a policy file, the memory of ids on disk."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import IntegrityError
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.requests.request import (
    Disable,
    Enable,
    Request,
    RunOnce,
    StatusRequest,
    answer,
    ask,
    read_answer,
)
from localpuppet.fleet.requests.request_handler import RequestAdmission, RequestRefusal
from localpuppet.fleet.trust.authority import Authority
from localpuppet.fleet.trust.seen import SeenIds
from localpuppet.fleet.trust.signing import MessageKind
from tests.doubles.certificates import Ca, write
from tests.doubles.identities import Person, certified, encode, person, verifier
from tests.doubles.ports import FakeClock
from tests.rigs.bad_inputs import CASES

LB01 = NodeName.parse("lb01.example.net")
POLICY = b"policy default deny\nallow\tchoria=alice\trunonce disable\t*\t*\n"
CORPUS = [case for case in CASES if case["kind"] == "rpc_request"]


class Desk:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = FakeClock()
        self.alice = person("alice")
        self.node = person(LB01)
        self.policy = directory / "policies" / "puppet.policy"
        self.policy.parent.mkdir()
        write(self.policy, POLICY)
        self.reception = self.start()

    def start(
        self, *others: Person, authority: Authority | None = None, **limits: int
    ) -> RequestAdmission:
        """Return the reception of an agent that has just started."""
        return RequestAdmission(
            me=LB01,
            verifier=verifier(self.directory, self.alice, self.node, *others, authority=authority),
            policy=self.policy,
            seen=SeenIds(self.directory / "state" / "seen.sqlite", self.clock, **limits),
            clock=self.clock,
        )

    def ask(self, who: Person | None = None, **changes: Any) -> tuple[Request, bytes]:
        signer = (who or self.alice).signer
        fields: dict[str, Any] = {"action": "runonce", "args": RunOnce(), **changes}
        return ask(signer, fields.pop("node", LB01), **fields, clock=self.clock)

    def refused(self, token: bytes, message: str) -> RequestRefusal:
        found = self.reception.receive(token)
        assert isinstance(found, RequestRefusal), found
        assert re.search(message, found.reason, re.IGNORECASE), found.reason
        assert found.reason.isprintable()
        return found


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in CORPUS])
def test_corpus(desk: Desk, case: dict[str, Any]) -> None:
    assert len(CORPUS) == 10
    desk.clock.time = datetime.fromtimestamp(1795000000, UTC)
    payload = case["input"].encode()
    token = desk.alice.signer.sign(payload, MessageKind.REQUEST)
    if "alg=none" in case["context"]:
        header = json.dumps({"alg": "none", "kid": "alice", "typ": "lp-request"}).encode()
        token = encode(header) + b"." + encode(payload) + b"."
    if "already in the replay cache" in case["context"] or "accepted once" in case["context"]:
        assert isinstance(desk.reception.receive(token), Request)
    if "kill -9 and start" in case["context"]:
        desk.reception = desk.start()  # the first is neither closed nor asked again
    if case["expect"] == "reject":
        desk.refused(token, case["message"])
        return
    found = desk.reception.receive(token)
    assert isinstance(found, Request)
    assert found.to_dict() == {**json.loads(payload), "args": {"noop": False}}


def test_a_request_and_its_answer(desk: Desk) -> None:
    request, token = desk.ask(
        action="disable", args=Disable(message="why not", length="2h"), life=100000
    )
    assert request.exp - request.iat == 300, "what its receiver allows"
    assert desk.reception.receive(token) == request
    message = answer(desk.node.signer, request, {"holds": 1}, clock=desk.clock)
    reply = read_answer(verifier(desk.directory, desk.node), message, request, clock=desk.clock)
    assert (reply.ok, reply.result, reply.error) == (True, {"holds": 1}, None)


def test_a_refusal_can_be_sent_to_the_caller(desk: Desk) -> None:
    request, token = desk.ask(action="status", args=StatusRequest())
    refusal = desk.refused(token, "denied by policy line 1")
    assert refusal.request == request
    long = refusal.reason + "\n\x1b" + "x" * 2000
    message = answer(desk.node.signer, request, long, clock=desk.clock)
    reply = read_answer(verifier(desk.directory, desk.node), message, request, clock=desk.clock)
    assert not reply.ok
    assert reply.error is not None
    assert reply.error.startswith(refusal.reason)
    assert reply.error.isprintable()


def test_a_request_is_no_answer_and_an_answer_no_request(desk: Desk) -> None:
    request, token = desk.ask()
    with pytest.raises(IntegrityError, match="typ is 'lp-request' where lp-reply is needed"):
        read_answer(verifier(desk.directory), token, request, clock=desk.clock)
    message = answer(desk.alice.signer, request, {}, clock=desk.clock)
    assert desk.refused(message, "typ is 'lp-reply'").request is None


def test_an_unverified_message_is_not_parsed(desk: Desk) -> None:
    _, token = desk.ask(person("alice"))
    assert desk.refused(token, "the signature does not match alice's key").request is None
    _, token = desk.ask(person("bob"))
    assert desk.refused(token, "no key of bob is trusted").request is None


def test_only_the_true_caller_gets_a_reply_to_a_request(desk: Desk) -> None:
    request, token = desk.ask()
    stolen = json.dumps({**request.to_dict(), "iss": "choria=root"}).encode()
    found = desk.refused(desk.alice.signer.sign(stolen, MessageKind.REQUEST), "is not the signer")
    assert found.request is None, "root did not ask"
    _, other = desk.ask(node=NodeName.parse("lb02.example.net"))
    assert desk.refused(other, "not for").request is None, "lb02 was asked"
    assert desk.reception.receive(token) == request
    assert desk.refused(token, "replay").request is None, "the first answer is the answer"


def test_only_admitted_requests_are_remembered(desk: Desk) -> None:
    for action, args in (("status", StatusRequest()), ("enable", Enable())):
        desk.refused(desk.ask(action=action, args=args)[1], "denied")
    desk.refused(desk.ask(node=NodeName.parse("lb02.example.net"))[1], "not for")
    assert not (desk.directory / "state").exists()


def test_a_denied_request_may_be_sent_again_when_the_policy_allows_it(desk: Desk) -> None:
    _, token = desk.ask(action="status", args=StatusRequest())
    desk.refused(token, "denied")
    write(desk.policy, POLICY + b"allow\tchoria=alice\tstatus\t*\t*\n")
    assert isinstance(desk.reception.receive(token), Request)
    desk.refused(token, "replay")


def test_the_same_id_of_another_caller_is_another_request(desk: Desk) -> None:
    bob = person("bob")
    write(desk.policy, POLICY.replace(b"choria=alice", b"*"))
    reception = desk.start(bob)
    request, token = desk.ask()
    claims = {**request.to_dict(), "iss": "choria=bob"}
    stolen = bob.signer.sign(json.dumps(claims).encode(), MessageKind.REQUEST)
    assert isinstance(reception.receive(stolen), Request)
    assert reception.receive(token) == request, "bob cannot use up alice's id"


def test_a_caller_cannot_fill_the_memory_for_other_callers(desk: Desk) -> None:
    """A caller who may send `status` cannot block another caller's `disable`."""
    mallory = person("mallory")
    write(desk.policy, POLICY + b"allow\tchoria=mallory\tstatus\t*\t*\n")
    reception = desk.start(mallory, limit=40, each=20)
    asked = (desk.ask(mallory, action="status", args=StatusRequest())[1] for _ in range(60))
    found = [*map(reception.receive, asked)]
    assert len([one for one in found if isinstance(one, Request)]) == 20
    refusals = [one.reason for one in found if isinstance(one, RequestRefusal)]
    assert all("20 ids of mallory are stored already" in reason for reason in refusals)
    _, token = desk.ask(action="disable", args=Disable(message="stop"))
    assert isinstance(reception.receive(token), Request)


@pytest.mark.parametrize("back", [0, 59, 3500])
def test_after_a_clock_is_set_back_a_replay_is_still_refused(desk: Desk, back: int) -> None:
    _, token = desk.ask()
    assert isinstance(desk.reception.receive(token), Request)
    desk.clock.advance(back)
    desk.reception.receive(desk.ask()[1])  # whatever may be forgotten is forgotten now
    desk.clock.advance(-back)
    desk.refused(token, "replay")


def test_no_policy_a_bad_policy_and_a_damaged_memory_deny(desk: Desk) -> None:
    _, token = desk.ask()
    write(desk.policy, POLICY + b"allow everything\n")
    desk.refused(token, r"puppet\.policy: line 3: is not a line of a policy")
    write(desk.policy, POLICY, mode=0o666)
    desk.refused(token, "writable by others")
    write(desk.policy, POLICY)
    desk.policy.parent.chmod(0o777)
    desk.refused(token, "writable by others")
    desk.policy.parent.chmod(0o755)
    desk.policy.unlink()
    desk.refused(token, "this node has no policy")
    write(desk.policy, POLICY)
    (desk.directory / "state").mkdir(mode=0o700)
    (desk.directory / "state" / "seen.sqlite").write_bytes(b"damaged" * 1000)
    desk.refused(desk.ask()[1], "damaged")


def test_a_certificate_asks_as_well_as_a_key(desk: Desk) -> None:
    ca = Ca()
    authority = Authority(write(desk.directory / "ca.pem", ca.text), None)
    write(desk.policy, POLICY.replace(b"alice", b"carol"))
    desk.reception = desk.start(authority=authority)
    carol = certified(ca.issue("carol"), "carol")
    request, token = ask(carol, LB01, "runonce", RunOnce(), clock=desk.clock)
    assert desk.reception.receive(token) == request
    desk.refused(token, "replay")
    desk.refused(desk.ask()[1], "denied by policy")
