"""Versions and ranges as in Puppet's metadata.json and in Puppetfiles."""

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.node.releases.modules import ModuleVersion, Range, newest

VERSIONS = ("0.9.0", "1.0.0", "1.2.0", "1.2.9", "1.10.0", "2.0.0-rc1", "2.0.0", "3.1.4")


def best(text: str) -> str | None:
    return newest(Range.parse(text, where=""), [ModuleVersion(v) for v in VERSIONS])


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("latest", "3.1.4"),
        ("1.2.0", "1.2.0"),
        ("= 1.2.0", "1.2.0"),
        (">= 1.0.0 < 2.0.0", "1.10.0"),
        (">=1.0.0 <2.0.0", "1.10.0"),
        ("> 1.2.0 < 1.2.9", None),
        ("<= 1.2.9", "1.2.9"),
        ("1.x", "1.10.0"),
        ("1.2.x", "1.2.9"),
        ("1", "1.10.0"),
        ("x", "3.1.4"),
        ("~ 1.2", "1.2.9"),
        ("~> 1.2.0", "1.2.9"),
        ("^1.2.0", "1.10.0"),
        ("^0.9.0", "0.9.0"),
        ("1.0.0 - 1.2.9", "1.2.9"),
        ("< 1.0.0 || 2.x", "2.0.0"),
        (">= 2.0.0-rc1 < 2.0.0", "2.0.0-rc1"),
        (">= 4.0.0", None),
    ],
)
def test_the_newest_version_in_a_range_is_chosen(text: str, version: str | None) -> None:
    assert best(text) == version


@pytest.mark.parametrize(
    "text", ["", "1.2.3.4", "newest", "> ", ">= 1 <", "01.2.3.", "||", "1" * 300]
)
def test_an_invalid_range_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="is not a version or a range"):
        Range.parse(text, where="")


@pytest.mark.parametrize("text", ["1.2", "v1.2.3", "1.2.3-", "1.02.3", "1.2.3\n", ""])
def test_an_invalid_version_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="is not a version"):
        ModuleVersion.parse(text, where="")


def test_versions_are_ordered_by_semantic_versioning() -> None:
    names = ["1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-beta.2", "1.0.0-beta.11", "1.0.0-rc.1", "1.0.0"]
    mixed = sorted(names)
    assert sorted(mixed, key=lambda name: ModuleVersion(name).order) == names
