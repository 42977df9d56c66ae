"""Texts that localpuppet shortens to a limit, or shows without secrets or commands for others."""

import json
import re
import zlib
from enum import StrEnum

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.packed import TooMuchError, unpacked
from localpuppet.base.formats.strict_json import JsonText, compact, elements, members
from localpuppet.base.formats.text import (
    folded,
    parse_choice,
    shortened,
    url_without_secrets,
    without_commands,
)
from localpuppet.base.formats.times import checked_time, parse_time


@pytest.mark.parametrize(
    ("text", "line"), [("abc", "abc"), ("abcd", "abcd"), ("abcde", "abc…"), ("a\nb", "a\\x…")]
)
def test_a_line_has_at_most_its_limit(text: str, line: str) -> None:
    assert shortened(text, 4) == line
    assert len(shortened(text * 1000, 4)) == 4


def test_repeated_lines_are_shown_once_with_their_count() -> None:
    lines = ["a", *["Error: Facter: x"] * 18, "", "", "b", "a"]
    assert [*folded(lines)] == ["a", "Error: Facter: x (×18)", "", "b", "a"]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://u:p@a.example.com/b?token=x", "https://a.example.com/b"),
        ("a.example.com:4222", "a.example.com:4222"),
        ("u:p@a.example.com", "a.example.com"),
    ],
)
def test_a_url_is_shown_without_secrets(url: str, shown: str) -> None:
    assert url_without_secrets(url) == shown


COMMANDS = {
    "::error::x\n": ":\\u003aerror::x\n",
    "a\n \t\x1b[1m::add-mask::e\n": "a\n \t\x1b[1m:\\u003aadd-mask::e\n",
    "a\r::x::": "a\r:\\u003ax::",
    "a\u2028::x::": "a\u2028:\\u003ax::",
    "a\x85\u3000\ufeff\u200b::x::": "a\x85\u3000\ufeff\u200b:\\u003ax::",
    "a\u180e::x::": "a\u180e::x::",
    "a\n\u180e::x::": "a\n\u180e:\\u003ax::",
    "a ##vso[b]": "a ##vso\\u005bb]",
    "###[error]": "###\\u005berror]",
    "##teamcity[a": "##teamcity\\u005ba",
    "section_start:1:a\r": "section_start\\u003a1:a\r",
}


@pytest.mark.parametrize("text", COMMANDS)
def test_no_command_for_a_runner_is_left_however_the_text_is_cut(text: str) -> None:
    assert without_commands(text)[0] == COMMANDS[text]
    for cut in range(len(text)):
        first, before = without_commands(text[:cut])
        assert first + without_commands(text[cut:], before)[0] == COMMANDS[text]


@pytest.mark.parametrize(
    "text", ["a::b\n", " x ::y::\n", "::1\n", "::ffff:192.0.2.1/96\n", "# [a]\n"]
)
def test_text_that_is_no_command_stays(text: str) -> None:
    assert without_commands(text)[0] == text


def test_json_without_commands_has_the_same_value() -> None:
    value = {"::a::": ["##[b]", "##vso[c]", "\n::d::"]}
    text = without_commands(json.dumps(value, indent=2))[0]
    assert "##[" not in text
    assert json.loads(text) == value


class Way(StrEnum):
    BY_SEA = "by sea"
    BY_LAND = "by land"


def test_an_unknown_word_is_refused_with_the_list_of_choices() -> None:
    assert parse_choice(Way, "by sea", what="a way") is Way.BY_SEA
    for hint, cure in (("", ""), ("look at a map", "; look at a map")):
        shown = f"'{'x' * 60}' is not a way (use one of by sea, by land{cure})"
        with pytest.raises(InvalidInputError, match=f"{re.escape(shown)}$"):
            parse_choice(Way, "x" * 1000, what="a way", hint=hint)


def test_a_timestamp_keeps_its_text() -> None:
    text = "2026-11-22T13:00:00+02:00"
    assert checked_time(text) == text
    assert parse_time(text) == parse_time("2026-11-22T11:00:00Z")


@pytest.mark.parametrize(
    "text",
    [
        "yesterday",
        "2026-11-22T11:00:00",
        "0001-01-01T00:00:00+14:00",  # in UTC there are no such years
        "9999-12-31T23:59:59-14:00",
    ],
)
def test_a_timestamp_without_a_utc_equivalent_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"isoformat|zone|years"):
        checked_time(text)


def test_json_text_is_inserted_unchanged_among_values() -> None:
    inner = elements([compact("ä\n"), "{}"])
    text = members({"ok": True, 'a "name"': JsonText(text=inner), "none": None})
    assert text == '{"ok":true,"a \\"name\\"":["\\u00e4\\n",{}],"none":null}'
    assert json.loads(text) == {"ok": True, 'a "name"': ["ä\n", {}], "none": None}


def test_no_members_make_an_empty_object_and_no_elements_an_empty_list() -> None:
    assert (members({}, end="\n"), elements([])) == ("{}\n", "[]")


def test_bytes_are_unpacked_up_to_the_limit() -> None:
    assert unpacked(zlib.compress(b"x" * 100), most=100) == b"x" * 100
    with pytest.raises(TooMuchError, match="more than 99 bytes come out of"):
        unpacked(zlib.compress(b"x" * 100 + b"y" * 2**20), most=99)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "not one whole zlib stream"),
        (b"rubbish", "not packed with zlib"),
        (zlib.compress(b"x")[:-1], "not one whole zlib stream"),
        (zlib.compress(b"x") + b"more", "not one whole zlib stream"),
    ],
)
def test_anything_but_one_complete_stream_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        unpacked(data, most=100)
