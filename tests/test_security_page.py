"""The pages about security: each attack in their tables names test files that exist."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted((DOCS / "contribute/security-tests").glob("*.md"))
THREATS = DOCS / "explanation/threat-model.md"
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


def rows(page: Path) -> Iterator[dict[str, str]]:
    """Yield each row of the tables of a page that have a column `tests`."""
    head: list[str] = []
    for line in page.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")] if line[:1] == "|" else []
        if not cells or not head:
            head = cells
        elif "tests" in head and not line.startswith("|---"):
            yield dict(zip(head, cells, strict=True))


@pytest.mark.parametrize("page", [*PAGES, THREATS], ids=lambda page: page.stem)
def test_every_attack_names_tests_that_exist(page: Path) -> None:
    attacks = list(rows(page))
    assert attacks or page.stem == "index"
    for attack in attacks:
        named = re.findall(r"`(tests/[\w/]+\.py)`", attack["tests"])
        assert named, attack["attack"]
        for name in named:
            assert "def test_" in (ROOT / name).read_text(), name


def test_tufs_list_is_complete() -> None:
    assert tuple(row["attack"] for row in rows(THREATS)) == TUF
