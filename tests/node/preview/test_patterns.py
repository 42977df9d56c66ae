"""Patterns of `--ignore` and `--fail-on`."""

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localpuppet.base.errors import InvalidInputError
from localpuppet.node.preview.difference import ForbiddenChange, ResourcePattern


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("Service", ResourcePattern(type="Service")),
        ("File[*]::mtime", ResourcePattern(type="File", title="*", parameter="mtime")),
        ("File::mtime", ResourcePattern(type="File", parameter="mtime")),
        ("Concat::Fragment[a]", ResourcePattern(type="Concat::Fragment", title="a")),
        ("Exec[[ -f /x ]::y]", ResourcePattern(type="Exec", title="[ -f /x ]::y")),
        ("*[/etc/*]", ResourcePattern(type="*", title="/etc/*")),
        ("A[]", ResourcePattern(type="A", title="")),
    ],
)
def test_a_pattern_has_a_type_a_title_and_a_parameter(text: str, pattern: ResourcePattern) -> None:
    assert ResourcePattern.parse(text) == pattern


@pytest.mark.parametrize("text", ["", "file", "File[", "[x]", "File[a]::", "x:File", "A" * 2000])
def test_an_invalid_pattern_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidInputError, match=r"--ignore: .*'File\[\*\]::mtime'"):
        ResourcePattern.parse(text)


def test_stars_match_any_text_and_brackets_match_literally() -> None:
    pattern = ResourcePattern.parse("File[/etc/[a]*.d/?]")
    assert pattern.fits("File", "/etc/[a]\n/x.d/y")
    assert not pattern.fits("File", "/etc/a.d/y")
    assert not pattern.fits("Filebucket", "/etc/[a].d/y")
    assert ResourcePattern.parse("Nginx::*").fits("Nginx::Vhost", "x")


@given(st.text("ab*?", max_size=8), st.text("ab", max_size=8))
def test_stars_match_as_in_a_shell(pattern: str, text: str) -> None:
    fits = ResourcePattern(type="File", title=pattern).fits("File", text)
    assert fits == fnmatchcase(text, pattern)


def test_a_pattern_with_many_stars_is_fast() -> None:
    pattern = ResourcePattern.parse(f"File[{'*a' * 100}*b]")
    assert not pattern.fits("File", "a" * 1_000_000)


def test_a_forbidden_change_starts_with_an_action() -> None:
    change = ForbiddenChange.parse("removed:Service[nginx]")
    assert (change.action, change.pattern) == (
        "removed",
        ResourcePattern(type="Service", title="nginx"),
    )
    for text in ("Service[nginx]", "gone:Service", ":Service", "removed"):
        with pytest.raises(InvalidInputError, match=r"--fail-on: .*'removed:Service\[nginx\]'"):
            ForbiddenChange.parse(text)
