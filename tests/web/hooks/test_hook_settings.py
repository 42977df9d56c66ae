"""Signatures of deliveries, and settings of hooks that are refused."""

import json
from typing import Any

import pytest

from localpuppet.base.formats.webhook_signature import parse_webhook_secret, sign_webhook
from localpuppet.base.machine.flock import Flock
from localpuppet.web.hooks.hook_settings import HookType, is_signed
from tests.rigs.node import Node

TEXT = "It's a Secret to Everybody"
KEY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
# The examples of GitHub's documentation and of Standard Webhooks.
HELLO, HELLO_HEX = (
    b"Hello, World!",
    ("757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"),
)
TEST, TEST_AT = b'{"test": 2432232314}', 1614265330
STANDARD = {
    "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
    "webhook-timestamp": str(TEST_AT),
    "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
}


def signed(kind: HookType, headers: dict[str, str], body: bytes, *, now: float = TEST_AT) -> bool:
    secret = parse_webhook_secret(KEY, where="key") if kind.signs_time else TEXT.encode()
    return is_signed(kind, secret, headers, body, now=now)


GENUINE: dict[HookType, tuple[dict[str, str], bytes]] = {
    HookType.GITHUB: ({"x-hub-signature-256": f"sha256={HELLO_HEX}"}, HELLO),
    HookType.GITEA: ({"x-gitea-signature": HELLO_HEX}, HELLO),
    HookType.FORGEJO: ({"x-forgejo-signature": HELLO_HEX}, HELLO),
    HookType.GITLAB: (STANDARD, TEST),
    HookType.LOCALPUPPET: (STANDARD, TEST),
    HookType.GITLAB_TOKEN: ({"x-gitlab-token": TEXT}, HELLO),
}


@pytest.mark.parametrize("kind", HookType)
def test_the_published_examples_are_genuine(kind: HookType) -> None:
    headers, body = GENUINE[kind]
    assert signed(kind, headers, body)
    assert not signed(kind, {}, body)
    # A signature in the header of another kind does not count, and neither does a changed body.
    for other in {*HookType} - {kind}:
        assert signed(other, headers, body) == (kind.signs_time and other.signs_time)
    assert signed(kind, headers, body + b" ") == (kind is HookType.GITLAB_TOKEN)
    for name, value in headers.items():
        for wrong in ("", value[:-1], f"{value} x"[1:], value.swapcase(), f"ü{value}"):
            if wrong == value:
                continue
            assert not signed(kind, {**headers, name: wrong}, body), (name, wrong)


@pytest.mark.parametrize("later", [-301, 301, 10**9])
def test_an_old_or_future_time_is_refused(later: int) -> None:
    assert not signed(HookType.GITLAB, STANDARD, TEST, now=TEST_AT + later)
    assert signed(HookType.GITLAB, STANDARD, TEST, now=TEST_AT + later % 300)


def test_no_part_of_a_body_counts_as_the_time() -> None:
    first, later, rest = b'{"title": "see ', TEST_AT + 9999, b'2"}'
    secret, body = parse_webhook_secret(KEY, where="x"), first + b".%d." % later + rest
    headers = {
        "webhook-id": f"msg_1.{TEST_AT}.{first.decode()}",
        "webhook-timestamp": str(later),
        "webhook-signature": sign_webhook(secret, "msg_1", TEST_AT, body),
    }
    assert not signed(HookType.GITLAB, headers, rest, now=later)


def test_one_of_several_signatures_is_enough() -> None:
    right = STANDARD["webhook-signature"]
    several = {**STANDARD, "webhook-signature": f"v1a,eA== v1,eA== {right}"}
    assert signed(HookType.GITLAB, several, TEST)
    many = {**STANDARD, "webhook-signature": "v1,eA== " * 100 + right}
    assert not signed(HookType.GITLAB, many, TEST)


HOOK = {"type": "github", "secret_file": "s", "source": "shop", "caller": "a", "stage": "role=x"}
SIGNED = {"require_signed": True, "signers": "keys"}


@pytest.mark.parametrize(
    ("hook", "source", "problem"),
    [
        ({"stage": None}, {}, "must have either stage or rollout"),
        ({"rollout": {"query": "role=x"}}, SIGNED, "must have either stage or rollout"),
        ({"stage": None, "rollout": {"query": "role=x"}}, {}, "needs a source with require_signed"),
        ({"source": "shpo"}, {}, "is not a source (did you mean"),
        ({"type": "bitbucket"}, {}, "type"),
        ({"secret": "x"}, {}, "secret"),
        ({"caller": "Alice"}, {}, "is not a signer's name"),
        ({"stage": None, "rollout": {"query": "role=x", "release": "r"}}, SIGNED, "release"),
    ],
)
def test_a_hook_that_cannot_work_is_refused_when_settings_are_read(
    node: Node, hook: dict[str, Any], source: dict[str, Any], problem: str
) -> None:
    one = {key: value for key, value in {**HOOK, **hook}.items() if value is not None}
    shop = {"git": "https://git.example.com/shop.git", **source}
    node.write("localpuppet.yaml", json.dumps({"sources": {"shop": shop}, "hooks": {"shop": one}}))
    for command in (["hooks"], ["status"]):
        done = node.run(*command)
        assert (done.code, problem in done.err) == (2, True), done.err


@pytest.mark.parametrize(
    ("settings", "secret", "mode", "problem"),
    [
        ({}, "x" * 15, 0o600, "is shorter than 16 characters"),
        ({}, "x" * 16, 0o644, "others can read"),
        ({"type": "gitlab"}, "x" * 16, 0o600, "is no secret whsec_BASE64"),
        ({"caller": "b"}, "x" * 16, 0o600, "is b, and requests are signed by a"),
        (
            {"stage": None, "rollout": {"query": "role=x", "batch": 2, "window": 2}},
            "x" * 16,
            0o600,
            "exclude each other",
        ),
    ],
)
def test_the_server_does_not_start_with_a_hook_that_cannot_work(
    node: Node, settings: dict[str, Any], secret: str, mode: int, problem: str
) -> None:
    configure(
        node, {key: value for key, value in {**HOOK, **settings}.items() if value is not None}
    )
    node.write("s", secret, mode)
    done = node.run("web", "--no-dashboard", "--hooks", "127.0.0.1:0")
    assert (done.code, problem in done.err) == (2, True), done.err


def configure(node: Node, hook: dict[str, Any]) -> None:
    shop = {"git": "https://git.example.com/shop.git", **SIGNED}
    text = {
        "node": "a",
        "bus": "sqlite",
        "buses": {"sqlite": {"path": str(node.root / "bus.sqlite")}},
        "sources": {"shop": shop},
        "hooks": {"shop": hook},
    }
    node.write("localpuppet.yaml", json.dumps(text))
    node.run("keys", "init", code=0)


def test_a_second_process_with_the_same_state_is_refused(node: Node) -> None:
    configure(node, HOOK)
    node.write("s", "x" * 16, 0o600)
    with Flock.need(node.state / "web" / "hooks.lock", ""):
        done = node.run("web", "--no-dashboard", "--hooks", "127.0.0.1:0")
    assert done.code == 75
    assert "another process serves with --hooks (end it, or omit --hooks)" in done.err
