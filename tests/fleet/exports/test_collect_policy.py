"""Whose resources a node takes: lines about signers, types and titles, and the lines that lack."""

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.fleet.exports.collectors import (
    DEFAULT,
    MAX_NAMED,
    CollectMode,
    CollectPolicy,
    proposed,
)
from tests.fleet.make import offer

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


def test_warnings_name_types_that_are_code_or_reach_beyond_their_title() -> None:
    rules = policy(
        "a\tFile Host\t*\tas-is",
        "b\tExec Sshkey Vhost\t*",
        "c\tCron\t*\tas-is",
        "d\tFile\t/srv/x\tguarded",
    )
    warned = [text.split(":")[0].removeprefix("takes ") for text in rules.warnings()]
    assert warned == ["Cron as it is", "Exec guarded", "File as it is", "Sshkey guarded"]


OFFERS = [
    offer("b", "Host", "two"),
    offer("a", "Host", "one"),
    offer("me", "Host", "own"),
    offer("a", "Server", "web"),
    offer("a", "File", "/etc/motd"),
    offer("b", "File", "/etc/*"),
]


def test_missing_lines_are_proposed_until_none_lacks_and_dangerous_ones_are_marked() -> None:
    lines = proposed(OFFERS, me="me.example.com", policy=DEFAULT)
    assert lines == [
        "# read before you allow it: each File is code or a right on this node",
        "# a title of File has a '*', which a line would take for any text: it has none here",
        "a.example.com\tFile\t/etc/motd\tguarded",
        "a.example.com b.example.com\tHost\t*\tguarded",
    ]
    lines = proposed(OFFERS, me="me.example.com", policy=DEFAULT)
    policy = CollectPolicy.parse("\n".join([*lines, "*\tServer\t*"]).encode(), where="p")
    assert proposed(OFFERS[:-1], me="me.example.com", policy=policy) == []
    assert policy.decide("b.example.com", "Host", "two") is CollectMode.GUARDED


def test_a_proposal_lists_what_guarded_drops_and_leaves_out() -> None:
    offers = [
        offer("a", "Vhost", "one", "web", port=80, config_file="/x", tag="web"),
        offer("b", "Vhost", "two", text="a\nb", owner="root"),
    ]
    assert proposed(offers, me="me.example.com", policy=DEFAULT) == [
        "# guarded drops config_file, owner",
        "# guarded leaves out Vhost[two] of b.example.com: its text has a newline or '..'",
        "a.example.com b.example.com\tVhost\t*\tguarded",
    ]
    many = [offer("a", "Vhost", f"v{n}", text="a\nb") for n in range(MAX_NAMED + 2)]
    assert proposed(many, me="me.example.com", policy=DEFAULT)[-2] == "# guarded leaves out 2 more"


def test_fragments_of_several_lines_need_an_as_is_line() -> None:
    kind = "Concat::Fragment"
    offers = [
        offer("a", kind, "one", content="server one\n", target="/etc/lb.cfg"),
        offer("b", kind, "two", content="server two\n  check\n", target="/etc/lb.cfg"),
        offer("b", kind, "three", content="x", target="/etc/lb.cfg"),
    ]
    lines = proposed(offers, me="me.example.com", policy=DEFAULT)
    assert lines == [
        "# guarded drops target",
        "# guarded leaves out Concat::Fragment[two] of b.example.com: its content has a newline"
        " or '..'",
        "# as-is trusts these signers with every parameter: read the type before you allow it",
        f"b.example.com\t{kind}\t*\tas-is",
        "# guarded drops target",
        f"a.example.com\t{kind}\t*\tguarded",
    ]
    policy = CollectPolicy.parse("\n".join(lines).encode(), where="p")
    modes = [policy.decide(f"{node}.example.com", kind, "x") for node in "ab"]
    assert modes == [CollectMode.GUARDED, CollectMode.AS_IS]
