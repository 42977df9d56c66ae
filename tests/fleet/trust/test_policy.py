"""The policy: mcollective's columns, nothing that could be read in two ways, and its file."""

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.trust.policy import (
    ACTIONS,
    ANY_ACTION,
    MAX_POLICY,
    Policy,
    PolicyDecision,
    decide,
    peer_refusal,
    read_policy,
)
from tests.rigs.bad_inputs import CASES

DEFAULT = "policy default deny\n"


def parse(text: str) -> Policy:
    return Policy.parse(text.encode(), where="puppet.policy")


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case["id"]) for case in CASES if case["kind"] == "policy"]
)
def test_corpus(case: dict[str, Any]) -> None:
    assert len([one for one in CASES if one["kind"] == "policy"]) == 4
    caller, action = re.findall(r"(?:caller|action)=(\S+)", case["context"])
    absent = case["input"] == "FILE_ABSENT"
    if case["expect"] == "reject" and not absent:
        with pytest.raises(InvalidInputError, match=f"(?i){case['message']}"):
            parse(case["input"])
        return
    decision = decide(None if absent else parse(case["input"]), caller, action)
    assert decision.allowed == (case["decision"] == "allow")
    assert re.search(case.get("message", ""), decision.reason, re.IGNORECASE)


def test_the_first_line_that_matches_decides_and_is_named() -> None:
    policy = parse(
        "# who may do what\n\n"
        "policy default deny\n"
        "deny\tchoria=alice\trunonce\t*\t*\n"
        "allow\tchoria=alice choria=web01.example.com\t*\t*\t*\n"
        "allow\t*\tstatus\t*\t*  \n"
    )
    assert decide(policy, "choria=alice", "runonce") == PolicyDecision(
        allowed=False, reason="denied by policy line 4: choria=alice runonce"
    )
    assert decide(policy, "choria=alice", "trigger").allowed
    assert decide(policy, "choria=web01.example.com", "runonce").allowed
    expected = "allowed by policy line 6: choria=bob status"
    assert decide(policy, "choria=bob", "status").reason == expected
    assert decide(policy, "choria=bob", "disable").reason == (
        "denied by policy line 3 (default): choria=bob disable"
        " ('localpuppet policy allow bob disable' there allows it)"
    )

    anywhere = parse("deny\tchoria=eve\t*\t*\t*\npolicy\tdefault   allow\n")
    assert decide(anywhere, "choria=alice", "status").allowed
    assert not decide(anywhere, "choria=eve", "status").allowed


def test_callers_and_actions_are_compared_as_a_whole() -> None:
    policy = parse(DEFAULT + "allow\tchoria=alice\tstatus\t*\t*\n")
    for caller in ("choria=alice2", "choria=malice", "alice", "choria=Alice", "CHORIA=alice", "*"):
        assert not decide(policy, caller, "status").allowed
    for action in ("statu", "status2", "*", "STATUS"):
        assert not decide(policy, "choria=alice", action).allowed


def test_deploying_a_release_requires_a_right_with_its_name() -> None:
    lines = (
        "deny\tchoria=alice\tdeploy:foo/tags/r9*\t*\t*\n"
        "allow\tchoria=alice\tstatus deploy:foo/tags/r* deploy:a/b/tags/v1.0\t*\t*\n"
        "allow\tchoria=bob\t*\t*\t*\n"
    )
    policy = parse("policy default allow\n" + lines)
    for release in ("foo/tags/r1", "foo/tags/r", "a/b/tags/v1.0"):
        assert decide(policy, "choria=alice", f"deploy:{release}").allowed
        assert policy.may_allow(f"deploy:{release}")
    cases = ("foo/tags/r91", "foo/tags/v1", "foo/tags/r1/x", "x/foo/tags/r1", "a/b/tags/v1x")
    for release in cases:
        assert not decide(policy, "choria=alice", f"deploy:{release}").allowed
    for action in ("deploy:foo/tags/r1", "values", "older", "deploy", "*"):
        assert not decide(policy, "choria=bob", action).allowed
    assert decide(policy, "choria=alice", "status").allowed


@pytest.mark.parametrize(
    ("pattern", "fitting", "others"),
    [
        ("*", ("r1", "v"), ("a/b",)),
        ("r*1", ("r1", "r11", "r.1"), ("r", "1", "r12")),
        ("r1*1", ("r11", "r1.1"), ("r1",)),
        ("*-rc*.*", ("v1-rc1.2", "-rc."), ("v1-rc1", "v1.2-rc1")),
        ("a**b", ("ab", "axb"), ("a", "b")),
        ("*a" * 12 + "b", ("a" * 12 + "b",), ("a" * 100,)),  # a regular expression never ends
    ],
)
def test_stars_match_tags(pattern: str, fitting: tuple[str, ...], others: tuple[str, ...]) -> None:
    policy = parse(DEFAULT + f"allow\tchoria=alice\tdeploy:foo/tags/{pattern}\t*\t*\n")
    for tags, allowed in ((fitting, True), (others, False)):
        for tag in tags:
            assert decide(policy, "choria=alice", f"deploy:foo/tags/{tag}").allowed is allowed


@pytest.mark.parametrize("action", [*ACTIONS, "deploy:foo/tags/r1"])
def test_a_caller_with_a_deny_line_gets_no_right_from_lines_for_all(action: str) -> None:
    named = f"{action} {ANY_ACTION[0]}"
    policy = parse(DEFAULT + f"deny\tchoria=eve\t*\t*\t*\nallow\t*\t{named}\t*\t*\n")
    assert not decide(policy, "choria=eve", action).allowed
    assert decide(policy, "choria=alice", action).allowed


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("allow\tchoria=alice\tstatus\tos=linux\t*", r"column facts is 'os=linux'.*only '\*'"),
        ("allow\tchoria=alice\tstatus\t*\tapache", r"column classes is 'apache'"),
        ("allow\tchoria=alice\tstatus\t*", "five tab-separated columns"),
        ("allow\tchoria=alice\tstatus\t*\t*\t*", "five tab-separated columns"),
        ("allow choria=alice status * *", "tab-separated columns"),
        ("policy standard deny", "classes; or 'policy default deny'"),
        ("Allow\tchoria=alice\tstatus\t*\t*", "not a line of a policy"),
        (" allow\tchoria=alice\tstatus\t*\t*", "not a line of a policy"),
        ("allow\t/choria=.*/\tstatus\t*\t*", "pattern.*write the complete caller id"),
        ("allow\tchoria=*.example.com\tstatus\t*\t*", "pattern"),
        ("allow\tchoria=alice *\tstatus\t*\t*", r"'\*' has other words"),
        ("allow\tadmins\tstatus\t*\t*", "not a caller id.*choria=NAME"),
        ("allow\tuid=500\tstatus\t*\t*", "not a caller id"),
        ("allow\tchoria=Alice\tstatus\t*\t*", "not a signer's name"),
        ("allow\tchoria=alice  choria=bob\tstatus\t*\t*", "repeated spaces"),
        ("allow\tchoria=alice\tstatsu\t*\t*", "unknown.*did you mean 'status'"),
        ("deny\tchoria=alice\texec\t*\t*", "the action 'exec' is unknown"),
        ("allow\tchoria=alice\tstatus\t*\t* # Alice", "column classes"),
        ("allow\tchoria=alice\tdeploy\t*\t*", "names no release.*deploy:SOURCE/tags/PATTERN"),
        ("allow\tchoria=alice\tdeploy:*\t*\t*", "not a source with a pattern of its tags"),
        ("allow\tchoria=alice\tdeploy:*/tags/r1\t*\t*", "not a source with a pattern"),
        ("allow\tchoria=alice\tdeploy:foo/trunk\t*\t*", "not a source with a pattern"),
        ("allow\tchoria=alice\tdeploy:foo/tags/\t*\t*", "has an empty component"),
        ("allow\tchoria=alice\tdeploy:foo/../tags/r*\t*\t*", "traversal"),
        ("policy default maybe", "not a line of a policy"),
        ("policy default deny", "more than one default"),
        ("allow\tchoria=alice\tstatus\t*\t*\r", "control character.*newline only"),
        ("allow\tchoria=al\x00ice\tstatus\t*\t*", "control character"),
    ],
)
def test_a_bad_line_refuses_the_file_and_is_named(line: str, message: str) -> None:
    good = "allow\tchoria=bob\tstatus\t*\t*\n"
    with pytest.raises(InvalidInputError, match=message) as caught:
        parse(DEFAULT + good + line + "\n" + good)
    assert str(caught.value).startswith("puppet.policy: ")
    if "default" not in line or "maybe" in line:
        assert "puppet.policy: line 3: " in str(caught.value)


def test_bytes_that_are_no_text_and_files_without_end_are_refused() -> None:
    for data in (b"policy default deny\n\xff", b"#" * (MAX_POLICY + 1)):
        with pytest.raises(InvalidInputError, match="policy is"):
            Policy.parse(data, where="p")


@given(st.text(max_size=200))
def test_any_text_is_a_policy_or_a_refusal_in_a_single_line(text: str) -> None:
    try:
        policy = parse(DEFAULT + text.encode("utf-8", "replace").decode())
    except InvalidInputError:
        return
    assert not policy.allow
    for action in ACTIONS:
        decide(policy, "choria=alice", action)


@pytest.mark.parametrize("action", [one for one in ACTIONS if one not in ANY_ACTION])
@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("policy default allow\n", False),
        ("policy default allow\nallow\t*\t*\t*\t*\n", False),
        ("policy default deny\nallow\tchoria=alice\tstatus ACTION\t*\t*\n", True),
        ("policy default deny\nallow\tchoria=bob\tACTION\t*\t*\n", False),
    ],
)
def test_newer_actions_must_be_named(text: str, allowed: bool, action: str) -> None:
    """`*` was written when there were six actions; it still means those."""
    policy = Policy.parse(text.replace("ACTION", action).encode(), where="puppet.policy")
    assert decide(policy, "choria=alice", action).allowed is allowed


SENDER = NodeName("web01.example.com")


def test_no_file_is_no_policy(tmp_path: Path) -> None:
    path = tmp_path / "policies" / "puppet.policy"
    assert read_policy(path) is None
    assert peer_refusal(path, SENDER, "trigger") is None, "each trusted sender may trigger"


def test_a_dangling_link_and_a_policy_that_others_could_write_deny(tmp_path: Path) -> None:
    path = tmp_path / "puppet.policy"
    path.symlink_to("elsewhere.policy")
    with pytest.raises(InvalidInputError, match="is a broken link"):
        read_policy(path)
    assert "is a broken link" in (peer_refusal(path, SENDER, "trigger") or "")
    path.unlink()
    path.write_text("policy default allow\n")
    path.chmod(0o666)
    assert "writable by others" in (peer_refusal(path, SENDER, "trigger") or "")
