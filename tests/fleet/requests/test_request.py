"""Claims of requests and replies: strict types, each refusal with its place; deployments."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName, ReleasePath, RolloutId, SignerName
from localpuppet.base.formats.values import Json
from localpuppet.fleet.bus.bus_limits import MAX_ASSIGNED_DATA
from localpuppet.fleet.inventory.outbox import MAX_AWAITED, AwaitedEntry
from localpuppet.fleet.requests import request as replies
from localpuppet.fleet.requests.request import (
    Deploy,
    DeployAction,
    Disable,
    Enable,
    NodeReply,
    Request,
    RolloutReference,
    RolloutStep,
    RunArguments,
    RunOnce,
    StatusRequest,
    answer,
    ask,
    lifetime_problem,
    misdirection,
    read_answer,
    refusal,
    step_uuid,
)
from localpuppet.fleet.trust.policy import Policy
from localpuppet.node.enc.document import Classes, EncData, classify
from localpuppet.node.runs.run_replies import MAX_TOLD
from tests.doubles.identities import person, verifier
from tests.doubles.ports import FakeClock

NOW = 1795000000
ALICE = SignerName.parse("alice")
LB01 = NodeName.parse("lb01.example.net")
POLICY = Policy.parse(b"policy default deny\nallow\tchoria=alice\trunonce\t*\t*\n", where="p")
AFTER = {"node": "db.example.net", "digest": "d" * 64, "at": 1795000000.5}
ID = "20261122T110000Z-0a1b"
GOOD: dict[str, Any] = {"id": ID, "epoch": 1}
HOLD: dict[str, Any] = {"message": "m", "for": "10m", "rollout": GOOD}
JTI = "3f2504e0-4f89-41d3-9a0c-0305e82c3301"
EPOCH_3 = RolloutReference(id=RolloutId(ID), epoch=3)


def claims(**changes: Any) -> dict[str, Any]:
    good = {
        "schema": 1,
        "iss": "choria=alice",
        "aud": "lb01.example.net",
        "iat": NOW - 2,
        "exp": NOW + 58,
        "jti": JTI,
        "action": "runonce",
        "args": {},
    }
    changed = {**good, **changes}
    return {key: value for key, value in changed.items() if value is not ...}


def parse(**changes: Any) -> Request:
    return Request.parse(json.dumps(claims(**changes)).encode())


def test_a_request_is_encoded_and_parsed() -> None:
    request = parse(args={"noop": True, "tags": ["web", "a::b"]})
    assert request.args == RunOnce(noop=True, tags=("web", "a::b"))
    assert Request.parse(json.dumps(request.to_dict()).encode()) == request
    rollout = {"id": "20261122T110000Z-0a1b", "epoch": 1, "step": 2}
    name = ".".join(["n" * 60] * 4) + ".example"
    one = {"node": name, "digest": "d" * 64, "at": 1795000000.123456}
    step = parse(args={"noop": False, "rollout": rollout, "awaited_entries": [one] * MAX_AWAITED})
    assert isinstance(step.args, RunOnce)
    assert step.args.awaited_entries == (AwaitedEntry.read(one),) * MAX_AWAITED
    assert Request.parse(json.dumps(step.to_dict()).encode()) == step, "there is room for all"
    disable = parse(action="disable", args={"message": "db migration", "for": "2h"})
    assert isinstance(disable.args, Disable)
    assert disable.args == Disable(message="db migration", length="2h")
    assert disable.args.seconds == 7200
    assert Request.parse(json.dumps(disable.to_dict()).encode()) == disable
    assert parse(action="status").args == StatusRequest()
    with pytest.raises(InvalidInputError, match="duplicate key 'iss'"):
        Request.parse(b'{"iss": "choria=alice", "iss": "choria=root"}')


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"iss": ...}, "request: the key 'iss' is missing"),
        ({"iss": "alice"}, "request.iss: 'alice' is not a caller id"),
        ({"iss": 7}, "request.iss: must be a string, not a number"),
        ({"aud": ...}, "request: the key 'aud' is missing"),
        ({"aud": ["lb01.example.net"]}, "request.aud: must be a string, not a list"),
        ({"aud": "LB01.example.net"}, "request.aud: node name.*lower case"),
        ({"args": {"changes_salt": "5a" * 16}},
         "request.args.changes_salt: is allowed with noop in a rollout"),
        ({"args": {"noop": True, "changes_salt": "5a"}},
         "request.args.changes_salt: is not a salt"),
        ({"args": {"awaited_entries": [AFTER]}},
         "request.args.awaited_entries: is allowed in a rollout only"),
        ({"args": {"awaited_entries": [{**AFTER, "at": "1"}]}},
         "request.args.awaited_entries.*must be a number"),
        ({"iat": True}, "request.iat: must be an integer from 0, not a boolean"),
        ({"iat": -1}, "request.iat: is -1, must be an integer from 0"),
        ({"exp": False}, "request.exp"),
        ({"jti": "1"}, "request.jti: '1' is not a uuid"),
        ({"action": "exec"}, "request.action: the action 'exec' is unknown"),
        ({"action": "trigger"}, "request.action"),
        ({"args": ...}, "request: the key 'args' is missing"),
        ({"args": []}, "request.args: must be a mapping, not a list"),
        ({"args": {"force": True}}, "request.args: unknown key 'force'"),
        ({"args": {"noop": 1}}, "args.noop: must be true or false, not a number"),
        ({"args": {"tags": []}}, "args.tags: has 0 elements; 1 to 64 are allowed"),
        ({"args": {"tags": ["a,b"]}}, r"args.tags\[0\]: 'a,b' is not a tag"),
        ({"args": {"tags": ["web", "--noop"]}}, r"args.tags\[1\]"),
        ({"args": {"tags": ["web"] * 65}}, "args.tags"),
        ({"action": "status", "args": {"x": 1}}, "args: unknown key 'x'"),
        ({"action": "disable", "args": {}}, "args: the key 'message' is missing"),
        ({"action": "disable", "args": {"message": " "}}, "args.message: the message is empty"),
        ({"action": "disable", "args": {"message": "a\x1b[2J"}}, "args.message.*control"),
        ({"action": "disable", "args": {"message": "x" * 1025}}, "args.message.*too long"),
        ({"action": "disable", "args": {"message": "m", "for": 60}}, "args.for: must be a string"),
        ({"action": "disable", "args": {"message": "m", "for": "-1h"}}, "args.for: '-1h'"),
        ({"nbf": NOW}, "request: unknown key 'nbf'"),
        *(({"action": "disable", "args": args}, message) for args,
         message in ((HOLD | {"for": "25h"}, "request.args.for: a rollout's hold is not for up to"),
         ({"message": "m", "rollout": GOOD}, "a rollout's hold is not for up to 86400 s"),
         (HOLD | {"rollout": GOOD | {"step": 1}}, "rollout: unknown key 'step'"))),
        *(({"action": action, "args": {"rollout": rollout}}, message) for action, rollout,
         message in (("enable", {"id": "x", "epoch": 1}, "rollout.id: 'x' is not a rollout's id"),
         ("enable", {"id": ID, "epoch": 0}, "rollout.epoch: is 0"),
         ("enable", GOOD | {"caller": "alice"}, "'alice' is not a caller id"),
         ("runonce", GOOD, "the key 'step' is missing"),
         ("runonce", GOOD | {"step": True}, "step: must be an integer from 1 to 1000000000,"))),
        ({"action": "status", "args": {"may": []}}, "may: has 0 elements"),
        ({"action": "status", "args": {"may": ["trigger"]}}, "the action 'trigger' is unknown"),
    ],
)  # fmt: skip
def test_claims_are_refused_with_their_place(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        parse(**changes)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_request_or_a_refusal(payload: bytes) -> None:
    with pytest.raises(InvalidInputError):
        Request.parse(payload)


@pytest.mark.parametrize(
    ("iat", "exp", "message"),
    [
        (0, 300, ""),
        (0, 301, "lifetime may be 300"),
        (30, 60, ""),
        (31, 60, "in the future"),
        (-60, 0, "expired"),
        (-60, 1, ""),
        (10, 10, "exp is not after iat"),
        (20, 10, "exp is not after iat"),
        (-(10**9), 10**9, "lifetime"),
    ],
)
def test_the_life_of_a_message(iat: int, exp: int, message: str) -> None:
    problem = lifetime_problem(iat=NOW + iat, exp=NOW + exp, now=NOW)
    assert message in problem
    assert bool(message) == bool(problem)


def test_admission_asks_in_order() -> None:
    def ask(request: Request, policy: Policy | None = POLICY) -> str:
        problem = misdirection(request, signer=ALICE, me=LB01)
        return problem or refusal(request, now=NOW, policy=policy)

    assert ask(parse()) == ""
    wrong = parse(iss="choria=root", aud="lb02.example.net", exp=NOW - 1, action="status")
    assert "is not the signer" in ask(wrong)
    wrong = parse(aud="lb02.example.net", exp=NOW - 1, action="status")
    assert "not for lb01.example.net" in ask(wrong)
    wrong = parse(exp=NOW - 1, action="status")
    assert "expired" in ask(wrong)
    assert "denied by policy line 1" in ask(parse(action="status"))
    assert "no policy" in ask(parse(), policy=None)


def reply(**changes: Any) -> dict[str, Any]:
    good = {
        "schema": 1,
        "iss": "choria=lb01.example.net",
        "aud": "choria=alice",
        "iat": NOW,
        "exp": NOW + 60,
        "in_reply_to": JTI,
        "ok": True,
        "result": {"state": "idle"},
    }
    return {key: value for key, value in {**good, **changes}.items() if value is not ...}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ok": 1}, "reply.ok"),
        ({"error": "no"}, "either ok and a result, or an error"),
        ({"ok": False}, "either"),
        ({"ok": False, "result": ...}, "either"),
        ({"ok": False, "result": ..., "error": "a\nb"}, "reply.error"),
        ({"result": []}, "reply.result"),
        ({"extra": 1}, "unknown key"),
        ({"in_reply_to": None}, "reply.in_reply_to"),
    ],
)
def test_replies_are_refused_with_their_place(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        NodeReply.parse(json.dumps(reply(**changes)).encode())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, ""),
        ({"result": {}}, ""),
        ({"ok": False, "result": ..., "error": "no such run"}, ""),
        ({"iss": "choria=lb02.example.net"}, "is not the signer"),
        ({"aud": "choria=bob"}, "not for choria=alice"),
        ({"in_reply_to": JTI.replace("3", "4")}, "another request"),
        ({"iat": NOW - 100, "exp": NOW - 40}, "expired"),
    ],
)
def test_a_reply_answers_a_single_request(changes: dict[str, Any], message: str) -> None:
    found = NodeReply.parse(json.dumps(reply(**changes)).encode())
    assert found.to_dict() == reply(**changes)
    problem = replies.reply_refusal(found, signer=SignerName.parse(LB01), request=parse(), now=NOW)
    assert message in problem
    assert bool(message) == bool(problem)


def test_another_node_cannot_answer() -> None:
    found, web01 = (
        NodeReply.parse(json.dumps(reply(iss="choria=web01")).encode()),
        SignerName("web01"),
    )
    problem = replies.reply_refusal(found, signer=web01, request=parse(), now=NOW)
    assert problem == "lb01.example.net was asked, web01 answered"


@pytest.mark.parametrize(
    ("action", "args"),
    [
        ("disable", Disable(message="m", length="24h", rollout=EPOCH_3)),
        ("enable", Enable(rollout=EPOCH_3)),
        ("enable", Enable()),
        ("runonce", RunOnce(noop=True, rollout=RolloutStep(id=RolloutId(ID), epoch=3, step=9))),
        ("enable", Enable(rollout=replace(EPOCH_3, caller="choria=alice"))),
        ("status", StatusRequest(may=("runonce", "log", "takeover"))),
        ("status", StatusRequest()),
    ],
)
def test_rollout_arguments_are_encoded_and_parsed(action: str, args: Any) -> None:
    asked = parse(action=action, args=args.to_dict())
    assert asked.args == args
    assert Request.parse(json.dumps(asked.to_dict()).encode()) == asked


def test_a_step_has_the_same_id_on_both_sides() -> None:
    assert step_uuid("choria=a/rollout/x", 1) == step_uuid("choria=a/rollout/x", 1)
    others = {step_uuid("choria=a/rollout/x", 2), step_uuid("choria=b/rollout/x", 1)}
    assert len(others | {step_uuid("choria=a/rollout/x", 1)}) == 3


# tests/node/runs/test_run_replies.py checks that no result is larger.
LARGEST = MAX_TOLD + 32 * 1024


@pytest.mark.parametrize("text", ["持" * 900, "a\nb" * 900, "é" * 900])
def test_a_caller_accepts_each_error(tmp_path: Path, text: str) -> None:
    clock, node, alice = FakeClock(), person("lb01.example.com"), person("alice")
    to = NodeName(node.name)
    request, _ = ask(alice.signer, to, "status", StatusRequest(), clock=clock)
    token = answer(node.signer, request, text, clock=clock)
    error = read_answer(verifier(tmp_path, node), token, request, clock=clock).error
    assert error and error.startswith(text[0])


def test_the_largest_result_of_a_run_fits_into_a_reply(tmp_path: Path) -> None:
    clock, node, alice = FakeClock(), person("lb01.example.com"), person("alice")
    request, _ = ask(alice.signer, NodeName("lb01.example.com"), "log", RunArguments(), clock=clock)
    result: dict[str, Json] = {"lines": ["x" * LARGEST]}
    token = answer(node.signer, request, result, clock=clock)
    assert read_answer(verifier(tmp_path, node), token, request, clock=clock).result == result


R2 = ReleasePath("foo/tags/r2")
ROLLOUT = RolloutReference(id=RolloutId("20261122T110000Z-0a1b"), epoch=2)
WHOLE = Deploy(
    release=R2,
    action=DeployAction.APPLY,
    serial=8,
    layers=("canary",),
    classes={"foo": {"port": 81}},
    allow_older=True,
    rollout=ROLLOUT,
)
NONCE = "9b2c3f70-0000-4000-8000-000000000000"
STAGE = {"release": "foo/tags/r2", "action": "stage", "serial": 1}


def read(raw: dict[str, Any]) -> Deploy:
    return Deploy.read(raw, where="request.args")


def test_a_deployment_request_is_encoded_and_parsed() -> None:
    confirms = Deploy(
        release=R2, action=DeployAction.CONFIRM, serial=1, nonce=NONCE, rollout=ROLLOUT
    )
    for args in (WHOLE, confirms, Deploy(release=R2, action=DeployAction.STAGE, serial=1)):
        assert read(args.to_dict()) == args


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"release": "foo/trunk"}, "foo/trunk is not a tag"),
        ({"release": "foo/branches/tags/x"}, "is not a tag"),
        ({"release": "../x/tags/r1"}, r"request.args.release: .*traversal"),
        ({"action": "run"},
         r"request.args.action: 'run' is not something.*stage, apply, roll_back"),
        ({"action": "roll_back"}, "only a rollout can roll back a release"),
        ({"action": "confirm", "rollout": ROLLOUT.to_dict()},
         "nonce: a rollout confirms with a nonce"),
        ({"action": "confirm", "nonce": NONCE}, "nonce: a rollout confirms with a nonce"),
        ({"nonce": NONCE, "rollout": ROLLOUT.to_dict()}, "nothing else has one"),
        ({"action": "confirm", "nonce": "x"}, "request.args.nonce: 'x' is not a uuid"),
        ({"serial": 0}, "serial: is 0"),
        ({"serial": True}, "serial: must be an integer"),
        ({"layers": []}, "layers: has 0 elements"),
        ({"layers": ["a\nb"]}, r"layers\[0\]"),
        ({"classes": {"foo": 1}}, "classes: foo: must be a mapping"),
        ({"classes": {"::foo": {}}}, "'::foo' is an invalid class name"),
        ({"classes": {"foo": {"db_password": "x"}}}, "classes.foo.db_password: has the name of a"),
        ({"classes": {"foo": {"users": [{"API-Token": "x"}]}}}, r"users\[0\].API-Token: has the"),
        ({"classes": {"foo": {"motd": "at %{db_url}"}}},
         r"classes.foo.motd: refers to a node parameter"),
        ({"classes": {"foo": {"m": [{"a": "%{literal('%')}%{ b.c }"}]}}}, r"foo.m\[0\].a: refers"),
        ({"classes": {"foo": {"motd": "x" * MAX_ASSIGNED_DATA}}}, "larger than 32768 bytes"),
        ({"parameters": {}}, "unknown key 'parameters'"),
        ({"rollout": {"id": "x", "epoch": 1}}, "not a rollout's id"),
    ],
)  # fmt: skip
def test_an_invalid_deployment_request_is_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        read({**STAGE, **more})
    assert "xx" not in str(caught.value)


def test_a_value_cannot_interpolate_the_nodes_own_input() -> None:
    """Otherwise a caller who may set a message of the day could read the node's own input."""
    own = EncData(classes={}, parameters={"db_url": "postgres://u:sesame@db"})
    asked: Classes = {"foo": {"motd": "%{db_url}"}}
    filled = classify([EncData(classes=asked, parameters={}).over(own)])
    assert "sesame" in str(filled.classes), "without the check the value would be filled in"
    with pytest.raises(InvalidInputError, match="a request may not read"):
        replace(WHOLE, classes=asked)
    literal: Classes = {"foo": {"log": "%{literal('%')}{db_url}"}}
    given = replace(WHOLE, classes=literal).classes
    filled = classify([EncData(classes=given, parameters={}).over(own)])
    assert filled.classes == {"foo": {"log": "%{db_url}"}}


def deploying(args: Deploy, lines: str) -> str:
    policy = Policy.parse(f"policy default allow\n{lines}".encode(), where="p")
    return refusal(replace(parse(), action="deploy", args=args), now=NOW, policy=policy)


def test_each_part_requires_its_right_and_a_star_grants_none() -> None:
    line = "allow\tchoria=alice\t%s\t*\t*\n"
    for rights, missing in (
        ("*", "deploy:foo/tags/r2"),
        ("deploy:foo/tags/r*", "values"),
        ("deploy:foo/tags/r* values", "older"),
    ):
        denied = f"denied by policy line 1 (default): choria=alice {missing} ("
        assert deploying(WHOLE, line % rights).startswith(denied)
    assert deploying(WHOLE, line % "deploy:foo/tags/r* older values") == ""
    plain = Deploy(release=R2, action=DeployAction.STAGE, serial=1)
    assert deploying(plain, line % "deploy:foo/tags/r*") == ""
    assert deploying(plain, line % "values older deploy:bar/tags/*").startswith("denied")


def test_a_caller_can_ask_which_releases_may_be_deployed() -> None:
    def may(*rights: str) -> StatusRequest:
        return StatusRequest.read({"may": list(rights)}, where="request.args")

    assert may("deploy:foo/tags/r2", "values", "older").may[0] == "deploy:foo/tags/r2"
    for wrong in ("deploy", "deploy:", "deploy:/etc", "trigger"):
        with pytest.raises(InvalidInputError, match=r"request.args.may\[0\]"):
            may(wrong)
