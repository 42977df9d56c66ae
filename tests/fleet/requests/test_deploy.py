"""The arguments of `deploy`: the same rules on both sides, a right for each part, no secrets."""

from dataclasses import replace
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName, ReleasePath, RolloutId, SignerName
from localpuppet.fleet.bus.bus_limits import MAX_ASSIGNED_DATA
from localpuppet.fleet.requests.arguments import (
    Deploy,
    DeployAction,
    RolloutReference,
    StatusRequest,
)
from localpuppet.fleet.requests.request import Request, refusal
from localpuppet.fleet.trust.policy import Policy
from localpuppet.node.enc.document import Classes, EncData, classify

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
GOOD = {"release": "foo/tags/r2", "action": "stage", "serial": 1}


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
        (
            {"action": "run"},
            r"request.args.action: 'run' is not something.*stage, apply, roll_back",
        ),
        ({"action": "roll_back"}, "only a rollout can roll back a release"),
        (
            {"action": "confirm", "rollout": ROLLOUT.to_dict()},
            "nonce: a rollout confirms with a nonce",
        ),
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
        (
            {"classes": {"foo": {"motd": "at %{db_url}"}}},
            r"classes.foo.motd: refers to a node parameter",
        ),
        ({"classes": {"foo": {"m": [{"a": "%{literal('%')}%{ b.c }"}]}}}, r"foo.m\[0\].a: refers"),
        ({"classes": {"foo": {"motd": "x" * MAX_ASSIGNED_DATA}}}, "larger than 32768 bytes"),
        ({"parameters": {}}, "unknown key 'parameters'"),
        ({"rollout": {"id": "x", "epoch": 1}}, "not a rollout's id"),
    ],
)
def test_an_invalid_deployment_request_is_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        read({**GOOD, **more})
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


def ask(args: Deploy, lines: str) -> str:
    policy = Policy.parse(f"policy default allow\n{lines}".encode(), where="p")
    request = Request(
        caller=SignerName("alice"),
        node=NodeName("a.example.com"),
        iat=100,
        exp=160,
        jti="3f2504e0-4f89-41d3-9a0c-0305e82c3301",
        action="deploy",
        args=args,
    )
    return refusal(request, now=100, policy=policy)


def test_each_part_requires_its_right_and_a_star_grants_none() -> None:
    line = "allow\tchoria=alice\t%s\t*\t*\n"
    assert ask(WHOLE, line % "*") == (
        "denied by policy line 1 (default): choria=alice deploy:foo/tags/r2"
    )
    assert ask(WHOLE, line % "deploy:foo/tags/r*").endswith("(default): choria=alice values")
    assert ask(WHOLE, line % "deploy:foo/tags/r* values").endswith("choria=alice older")
    assert ask(WHOLE, line % "deploy:foo/tags/r* older values") == ""
    plain = Deploy(release=R2, action=DeployAction.STAGE, serial=1)
    assert ask(plain, line % "deploy:foo/tags/r*") == ""
    assert ask(plain, line % "values older deploy:bar/tags/*").startswith("denied")


def test_a_caller_can_ask_which_releases_may_be_deployed() -> None:
    def may(*rights: str) -> StatusRequest:
        return StatusRequest.read({"may": list(rights)}, where="request.args")

    assert may("deploy:foo/tags/r2", "values", "older").may[0] == "deploy:foo/tags/r2"
    for wrong in ("deploy", "deploy:", "deploy:/etc", "trigger"):
        with pytest.raises(InvalidInputError, match=r"request.args.may\[0\]"):
            may(wrong)
