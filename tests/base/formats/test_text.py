"""Texts that localpuppet shortens to a limit, or shows without secrets."""

import pytest

from localpuppet.base.formats.text import folded, shortened, url_without_secrets


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
