"""Whose resources a node takes: lines about signers, types and titles."""

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.fleet.exports.collect_policy import DEFAULT, CollectMode, CollectPolicy, line_for

FILE = "collect.policy"


def policy(*lines: str) -> CollectPolicy:
    return CollectPolicy.parse("\n".join(lines).encode(), where=FILE)


def test_the_first_line_about_signer_type_and_title_decides() -> None:
    rules = policy(
        "# who gives what",
        "",
        "ca01.example.com\tfile host\t/etc/ssl/site/*\tas-is",
        "*.web.example.com lb01.example.com\tHaproxy::Balancermember\t*",
        "*\tFile\t/etc/ssl/*\tguarded",
    )
    assert rules.decide("ca01.example.com", "File", "/etc/ssl/site/a.pem") is CollectMode.AS_IS
    assert rules.decide("ca02.example.com", "File", "/etc/ssl/site/a.pem") is CollectMode.GUARDED
    assert rules.decide("ca01.example.com", "File", "/etc/sudoers") is None
    assert rules.decide("ca01.example.com", "Exec", "/etc/ssl/site/a.pem") is None
    member = "Haproxy::Balancermember"
    for signer in ("a.web.example.com", "b.a.web.example.com", "lb01.example.com"):
        assert rules.decide(signer, member, "x") is CollectMode.GUARDED
    for signer in ("web.example.com", "aweb.example.com", "lb02.example.com"):
        assert rules.decide(signer, member, "x") is None
    assert rules.names("Host")
    assert not rules.names("Exec")


@pytest.mark.parametrize(
    ("pattern", "title", "matches"),
    [
        ("*", "any thing/at all", True),
        ("a*c", "abc", True),
        ("a*c", "abcd", False),
        ("a?c", "abc", False),
        ("a[b]c", "abc", False),
        ("a[b]c", "a[b]c", True),
        ("a.c", "abc", False),
        ("Web", "web", False),
        ("two words", "two words", True),
    ],
)
def test_a_star_alone_is_a_pattern(pattern: str, title: str, matches: bool) -> None:
    assert (policy(f"*\tHost\t{pattern}").decide("a", "Host", title) is not None) is matches


def test_without_a_file_servers_alone_are_taken() -> None:
    assert DEFAULT.decide("web01.example.com", "Server", "web") is CollectMode.GUARDED
    assert not DEFAULT.names("Notify")
    assert policy("").decide("web01.example.com", "Server", "web") is None


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("web01", "not a line of a policy"),
        ("web01\tFile", "not a line of a policy"),
        ("web01\tFile\t*\tguarded\tmore", "not a line of a policy"),
        ("web01\t*\t*", "a type is a right"),
        ("web*\tFile\t*", "is a pattern"),
        ("Web01\tFile\t*", "not a signer's name"),
        ("web01\tFi le\t*\traw", "'raw' is not a way"),
        ("web01\t/etc\t*", "not the name of a type"),
        ("web01\tFile\t*\tAs-is", "not a way to take"),
        ("web01  a\tFile\t*", "repeated spaces"),
        ("web01\tFile\t\x1b", "control character"),
    ],
)
def test_a_line_that_is_not_understood_refuses_the_file(line: str, reason: str) -> None:
    with pytest.raises(InvalidInputError, match=reason) as caught:
        policy("*\tServer\t*", line)
    assert "collect.policy: line 2" in str(caught.value)


def test_a_proposed_line_can_be_parsed() -> None:
    rules = policy(line_for(["a.example.com", "b.example.com"], "Concat::Fragment"))
    assert rules.decide("b.example.com", "Concat::Fragment", "x") is CollectMode.GUARDED


def test_warnings_name_types_that_are_code_or_reach_beyond_their_title() -> None:
    rules = policy(
        "a\tFile Host\t*\tas-is",
        "b\tExec Sshkey Vhost\t*",
        "c\tCron\t*\tas-is",
        "d\tFile\t/srv/x\tguarded",
    )
    warned = rules.warnings()
    assert [text.split(":")[0] for text in warned] == [
        "takes Cron as it is",
        "takes Exec guarded",
        "takes File as it is",
        "takes Sshkey guarded",
    ]
