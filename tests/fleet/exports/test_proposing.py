"""The lines that a policy lacks, as a person copies them."""

from localpuppet.fleet.exports.collect_policy import (
    DEFAULT,
    MAX_NAMED,
    CollectMode,
    CollectPolicy,
    proposed,
)
from tests.fleet.make import offer

OFFERS = [
    offer("b", "Host", "two"),
    offer("a", "Host", "one"),
    offer("me", "Host", "own"),
    offer("a", "Server", "web"),
    offer("a", "File", "/etc/motd"),
    offer("b", "File", "/etc/*"),
]


def test_missing_lines_are_proposed_and_dangerous_ones_are_marked() -> None:
    lines = proposed(OFFERS, me="me.example.com", policy=DEFAULT)
    assert lines == [
        "# read before you allow it: each File is code or a right on this node",
        "# a title of File has a '*', which a line would take for any text: it has none here",
        "a.example.com\tFile\t/etc/motd\tguarded",
        "a.example.com b.example.com\tHost\t*\tguarded",
    ]


def test_with_the_proposed_lines_only_resources_without_a_line_are_missing() -> None:
    lines = proposed(OFFERS, me="me.example.com", policy=DEFAULT)
    policy = CollectPolicy.parse("\n".join([*lines, "*\tServer\t*"]).encode(), where="p")
    assert proposed(OFFERS[:-1], me="me.example.com", policy=policy) == []


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
    assert [policy.decide(f"{node}.example.com", kind, "x") for node in "ab"] == [
        CollectMode.GUARDED,
        CollectMode.AS_IS,
    ]
