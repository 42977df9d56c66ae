"""Search expressions of collectors, and the resources that match."""

from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.fleet.exports.collectors import MAX_DEPTH, Search, show
from tests.fleet.make import resource

OPTIONS = {"a": [1, {"b": None}], "c": True}
PARAMETERS = {"mode": "0644", "count": 1, "on": True, "names": ["a", "B"], "empty": None}
FILE = resource("File", "/Etc/x", "web", "eu-1", **PARAMETERS, opts=OPTIONS)


@pytest.mark.parametrize(
    ("condition", "matches"),
    [
        (None, True),
        (["tag", "==", "Web"], True),
        (["tag", "==", "db"], False),
        (["tag", "!=", "db"], True),
        (["tag", "!=", "web"], False),
        (["tag", "==", ["db", "web"]], True),
        (["title", "==", "/Etc/x"], True),
        (["title", "==", "/etc/x"], False),
        (["title", "!=", "/etc/x"], True),
        (["mode", "==", "0644"], True),
        (["mode", "==", 644], False),
        (["count", "==", 1], True),
        (["count", "==", 1.0], False),
        (["count", "==", True], False),
        (["on", "==", True], True),
        (["on", "==", "true"], False),
        (["names", "==", "a"], False),
        (["names", "!=", "a"], True),
        (["names", "==", ["a", "B"]], True),
        (["names", "==", ["B", "a"]], False),
        (["names", "!=", ["a", "b"]], True),
        (["opts", "==", {"c": True, "a": [1, {"b": None}]}], True),
        (["opts", "==", {"a": [1, {"b": None}]}], False),
        (["opts", "==", {"a": [1.0, {"b": None}], "c": True}], False),
        (["opts", "!=", {"c": True}], True),
        (["names", "==", {"a": "B"}], False),
        (["nosuch", "==", None], False),
        (["empty", "==", None], False),
        (["nosuch", "!=", None], True),
        (["nosuch", "!=", "x"], True),
        ([["tag", "==", "web"], "and", ["mode", "==", "0600"]], False),
        ([["tag", "==", "db"], "or", [["tag", "==", "web"], "and", ["on", "!=", False]]], True),
    ],
)
def test_conditions(condition: Any, matches: bool) -> None:
    assert Search.parse(condition).matches(FILE) is matches


@pytest.mark.parametrize(
    ("condition", "tag"),
    [
        (None, None),
        (["tag", "==", "Web"], "web"),
        (["tag", "!=", "web"], None),
        (["title", "==", "x"], None),
        ([["title", "==", "x"], "and", ["tag", "==", "web"]], "web"),
        ([["title", "==", "x"], "or", ["tag", "==", "web"]], None),
        (["tag", "==", ["web"]], None),
    ],
)
def test_a_tag_that_every_match_has(condition: Any, tag: str | None) -> None:
    assert Search.parse(condition).tag() == tag


@pytest.mark.parametrize(
    "condition",
    [
        *("x", [], ["tag", "=~", "x"], ["tag", "==", {"a": 1}], [1, "==", 1], ["tag", "=="]),
        [["tag", "==", "x"], "xor", ["tag", "==", "y"]],
        [["tag", "==", "x"], "and", None],
    ],
)
def test_an_invalid_condition_is_refused(condition: Any) -> None:
    with pytest.raises(InvalidInputError):
        Search.parse(condition)


def test_a_condition_is_shown_as_puppet_code_and_has_an_end() -> None:
    expected = "(tag == 'a') and (mode != undef)"
    assert show([["tag", "==", "a"], "and", ["mode", "!=", None]]) == expected
    assert show(["on", "==", [True, 1]]) == "on == [true, 1]"
    assert show(["o", "==", {"a": [None], "b": {}}]) == "o == {'a' => [undef], 'b' => {}}"
    deep: Any = ["tag", "==", "x"]
    for _ in range(MAX_DEPTH + 1):
        deep = [deep, "and", ["tag", "==", "x"]]
    with pytest.raises(InvalidInputError, match="too many conditions"):
        Search.parse(deep)
