"""docs/security.md: each attack in its tables names the tests that hold what it says."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/security.md").read_text()
# The names are TUF's, in its order: https://theupdateframework.io/docs/security/
TUF = (
    "arbitrary installation",
    "endless data",
    "extraneous dependencies",
    "fast-forward",
    "indefinite freeze",
    "malicious mirrors",
    "mix-and-match",
    "rollback",
    "slow retrieval",
    "vulnerability to key compromise",
    "wrong software installation",
)


def rows(title: str) -> list[list[str]]:
    """Return the cells of a section's table, without its head."""
    section = PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


@pytest.mark.parametrize(
    ("title", "column"),
    [
        ("Attacked, and what happened", 3),
        ("Seven areas, attacked with real servers and a real sudo", 3),
        ("TUF's list", 2),
    ],
)
def test_every_row_names_tests_that_are_there(title: str, column: int) -> None:
    assert rows(title)
    for row in rows(title):
        named = re.findall(r"`(tests/[\w/]+\.py)`", row[column])
        assert named, row[0]
        for name in named:
            assert "def test_" in (ROOT / name).read_text(), name


def test_tufs_list_is_whole() -> None:
    assert tuple(row[0] for row in rows("TUF's list")) == TUF
