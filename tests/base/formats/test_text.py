"""Texts that localpuppet shortens to a limit, or shows without secrets or commands for others."""

import json

import pytest

from localpuppet.base.formats.text import (
    folded,
    shortened,
    url_without_secrets,
    without_commands,
)


@pytest.mark.parametrize(
    ("text", "line"),
    [("abc", "abc"), ("abcd", "abcd"), ("abcde", "abc…"), ("a\nb", "a\\x…")],
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
