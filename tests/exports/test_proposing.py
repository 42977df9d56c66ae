"""The lines that a policy lacks, as a person copies them."""

from localpuppet.exports.policy import DEFAULT, CollectPolicy
from localpuppet.exports.proposing import proposed
from tests.exports.offers import offer

OFFERS = [
    offer("b", "Host", "two"),
    offer("a", "Host", "one"),
    offer("me", "Host", "own"),
    offer("a", "Server", "web"),
    offer("a", "File", "/etc/motd"),
    offer("b", "File", "/etc/*"),
]


def test_what_is_lacking_is_proposed_and_what_is_dangerous_is_marked() -> None:
    lines = proposed(OFFERS, me="me.example.com", policy=DEFAULT)
    assert lines == [
        "# read before you allow it: each File is code or a right on this node",
        "# a title of File has a '*', which a line would take for any text: it has none here",
        "a.example.com\tFile\t/etc/motd\tguarded",
        "a.example.com b.example.com\tHost\t*\tguarded",
    ]


def test_with_these_lines_nothing_is_lacking_but_what_has_none() -> None:
    lines = proposed(OFFERS, me="me.example.com", policy=DEFAULT)
    policy = CollectPolicy.parse("\n".join([*lines, "*\tServer\t*"]).encode(), where="p")
    assert proposed(OFFERS[:-1], me="me.example.com", policy=policy) == []
