"""The forms of a check, in a document and as a text."""

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.values import Json
from localpuppet.rollout.site import (
    MAX_CHECK,
    Check,
    on_node,
    parse_check,
    parse_text,
    shown,
    to_json,
)
from tests.rollout.simulated import node


@pytest.mark.parametrize(
    ("text", "check"),
    [
        ("http://%{node}:8080/health?x=1", "http://%{node}:8080/health?x=1"),
        ("https://web", "https://web"),
        ("/bin/probe --host %{node}", ("/bin/probe", "--host", "%{node}")),
        ("/bin/sh -c 'exit 0; # $HOME'", ("/bin/sh", "-c", "exit 0; # $HOME")),
    ],
)
def test_a_check_is_parsed_from_a_text(text: str, check: Check) -> None:
    assert parse_text(text, where="--check") == check
    assert parse_check(to_json(check), "") == check  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("probe %{node}", "neither an http or https URL nor a command"),
        ("", "neither"),
        ("ftp://web/", "neither"),
        ("http://me:pw@web/", "without a user"),
        ("http://web:99999/", "is not an http or https URL"),
        ("http://web:x/", "is not an http or https URL"),
        ("http://:80/", "is not an http or https URL"),
        ("/bin/probe 'x", "has unbalanced quotes"),
        ("/bin/probe %{fqdn}", r"\[1\]: unknown placeholder"),
        ("/bin/probe " + "x" * MAX_CHECK, "characters; at most 4096"),
        ("http://web/" + "x" * MAX_CHECK, "characters; at most 4096"),
        ("/bin/probe" + " x" * 64, "has 65 elements; at most 64"),
    ],
)
def test_an_invalid_check_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as refused:
        parse_text(text, where="--check")
    assert str(refused.value).startswith("--check")


@pytest.mark.parametrize("value", [None, 1, {"a": 1}, [], ["probe"], [1], ["/p", "\0"]])
def test_an_invalid_check_in_a_document_is_refused(value: Json) -> None:
    with pytest.raises(InvalidInputError):
        parse_check(value, "checks[0]")


def test_the_node_name_replaces_each_placeholder() -> None:
    found = on_node(("/bin/probe", "%{node}:%{node}", "%{x"), node(1))
    assert found == ("/bin/probe", "n01.example.com:n01.example.com", "%{x")
    assert on_node("http://%{node}/%{node}", node(1)) == "http://n01.example.com/n01.example.com"


def test_messages_name_a_check_without_possible_secrets() -> None:
    assert shown("https://web/health?token=secret") == "https://web/health"
    assert shown(("/bin/probe", "--password", "secret")) == "/bin/probe"
