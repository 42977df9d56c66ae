"""mcollective's expressions, with the corpus of bad ones."""

import json
import re
import time
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.query.functions import FunctionCall, FunctionReply
from tests.doubles.inventory import MemoryInventory
from tests.fleet.inventory.query.fleet import ask, entry
from tests.rigs.bad_inputs import CASES

MINE = [case for case in CASES if case["kind"] == "fact_query"]
FACTS: dict[str, Json] = {
    "hostname": "new",
    "uptime": "3 days",
    "uptime_days": 3,
    "role": "node",
    "operatingsystemrelease": "12.4",
    "is_virtual": True,
    "os": {"family": "Debian"},
    "ips": ["10.0.0.5", "10.0.0.6"],
    "ports": [22, 443],
    "none": [],
    "tier": ["front", "back"],
    "empty": "",
}


def answer(text: str, hostname: str = "new") -> FunctionReply:
    node = entry("new.example.net", {**FACTS, "hostname": hostname}, roles=["node"])
    return FunctionCall.of("servers_with_facts", [text]).answer(MemoryInventory([node]))


@pytest.mark.parametrize("case", MINE, ids=lambda case: case["id"])
def test_corpus(case: dict[str, Any]) -> None:
    hostname = re.search(r"hostname=''?(a+!)", case.get("context", ""))
    before = time.process_time()
    try:
        reply = answer(str(case["input"]), hostname[1] if hostname else "new")
    except InvalidInputError as error:
        assert case["expect"] == "reject"
        assert re.search(case["message"], str(error), re.IGNORECASE), str(error)
        assert str(error).isprintable()
        return
    # The corpus leaves it open to refuse nested quantifiers or to answer in time.
    linear = case["id"] == "fq-redos" and bool(hostname)
    assert case["expect"] == "accept" or linear
    if linear:
        assert time.process_time() - before < case["max_seconds"]
    assert bool(reply.names) == case.get("match", False)
    if "message" in case and case["expect"] == "accept":
        assert any(re.search(case["message"], warning) for warning in reply.warnings)


def test_every_case_of_the_corpus_is_used() -> None:
    assert len(MINE) == 14


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("os.family=Debian", True),
        ("os.family == Debian", True),
        ("os.family!=Debian", False),
        ("os.family!=RedHat", True),
        ("os.nosuch!=x", False),
        ("ips.1=10.0.0.6", True),
        ("ips=10.0.0.5", True),
        ("ips=10.0.0.6", True),
        ("ips=10.0.0.7", False),
        ("ips!=10.0.0.6", False),
        ("ips!=10.0.0.7", True),
        ("ips=~[.]6$", True),
        ("ips!~[.]6$", False),
        ("ips!~[.]7$", True),
        ("ports>80", True),
        ("ports>443", False),
        ("os=family", True),
        ("os!=family", False),
        ("os=Debian", False),
        ("os!=Debian", True),
        ("none!=x", True),
        ("none!~x", True),
        ("none=x", False),
        ("tier=front", True),
        ("tier=back", True),
        ("tier!=back", False),
        ("uptime_days=3.0", True),
        ("uptime_days<3", False),
        ("uptime_days=<3", True),
        ("uptime_days=>3", True),
        ("hostname=~^n", True),
        ("hostname=~/^N/", False),
        ("hostname!=/^n/", False),
        ("hostname!~/^x/", True),
        ("hostname=/new", False),
        ("is_virtual=yes", False),
        ("role=node", True),
        ("role!=node", False),
        ("fqdn=new.example.net", True),
    ],
)
def test_expressions(text: str, matches: bool) -> None:
    assert bool(answer(text).names) == matches


@pytest.mark.parametrize("text", ["a=", "=b", "a", "a<>b", "a===b", "a>b", "a><1", "  ", "a=~/(/"])
def test_refused(text: str) -> None:
    with pytest.raises(InvalidInputError):
        answer(text)


def test_a_warning_names_an_array_with_a_member_that_is_not_a_number() -> None:
    assert answer("ports>80").warnings == ()
    (warning,) = answer("ips>80").warnings
    assert "the fact ips is not a number on new.example.net" in warning


def test_no_character_of_a_value_has_a_meaning() -> None:
    for value in ('x" or certname ~ ".*', "' or 1=1 --", "*", "%", "a and b=c", "${x}"):
        assert ask("servers_with_facts", f"hostname={value}") == []
        assert json.dumps(value)
