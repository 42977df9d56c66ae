"""The phrase check: which texts of a file it reads, and what it finds in them."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

from tests.rigs.node import Done, completed

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import style  # noqa: E402 # it lies beside the other scripts

ANEW = [style.Phrase(pattern=re.compile(r"\banew\b"), instead="again")]


def find(path: str, text: str, *allowed: str) -> list[tuple[str, int]]:
    """Return the kind and the line of each hit of 'anew'."""
    return [(hit.kind, hit.line) for hit in style.find_hits(path, text, ANEW, list(allowed))]


def test_a_paragraph_is_read_across_line_ends() -> None:
    phrase = style.Phrase(pattern=re.compile(r"\bis said\b"), instead="reports")
    hits = list(style.find_hits("README.md", "# Title\n\nwhat is\nsaid here\n", [phrase], []))
    assert [(hit.kind, hit.line) for hit in hits] == [("markdown", 3)]


MODULE = """'''anew'''
# anew
@click.command()
@click.option("--x", help="anew")
def run_command():
    '''Run anew.'''
    raise Error("anew")
"""
TEMPLATE = "<p class='anew'>\n{# anew #}{{ anew }}\nbuilt anew</p>"


@pytest.mark.parametrize(
    ("path", "text", "hits"),
    [
        *(
            pytest.param("docs/agent.md", text, [], id=f"code in a page: {text!r}")
            for text in ("`anew`", "[x](anew.md)", "```\nanew\n```", "text\n\n    anew\n")
        ),
        ("README.md", "built anew", [("markdown", 1)]),
        ("docs/adr/0001-x.md", "built anew", [("adr", 1)]),
        ("CHANGELOG.md", "built anew", [("changelog", 1)]),
        pytest.param(
            "localpuppet/x.py",
            MODULE,
            [("comments", 2), ("docstrings", 1), ("help", 4), ("help", 6), ("strings", 7)],
            id="each text of a module",
        ),
        ("tests/test_x.py", "# anew\nX = 'anew'\n", [("tests", 1), ("tests", 2)]),
        pytest.param("localpuppet/web/templates/x.html", TEMPLATE, [("templates", 3)], id="markup"),
    ],
)
def test_each_text_has_its_kind_and_code_does_not_count(
    path: str, text: str, hits: list[tuple[str, int]]
) -> None:
    assert sorted(find(path, text)) == hits
    assert find(path, text, "anew") == []


def test_who_at_the_start_of_a_sentence_counts_unless_it_is_a_question() -> None:
    configuration = tomllib.loads(style.CONFIGURATION.read_text())
    row = next(row for row in configuration["phrases"] if "Who" in row["pattern"])
    pattern = re.compile(row["pattern"], re.IGNORECASE)
    assert pattern.search("Who is on hold is skipped.")
    assert pattern.search("Skipped: Who is on hold.")
    assert not pattern.search("Who asked for the run?")
    assert not pattern.search("The node who asked.")


def test_counts_above_the_record_fail_and_name_the_kind(tmp_path: Path) -> None:
    for name in ("style.py", "style.toml"):
        copy = tmp_path / "scripts" / name
        copy.parent.mkdir(exist_ok=True)
        copy.write_text((ROOT / "scripts" / name).read_text())
    toml = tmp_path / "scripts/style.toml"
    toml.write_text(re.sub(r"(?m)^(\w+) = \d+$", r"\1 = 0", toml.read_text()))
    completed("git", "init", "-q", tmp_path)
    (tmp_path / "README.md").write_text("clean\n")

    def check() -> Done:
        return completed(sys.executable, tmp_path / "scripts/style.py", check=False)

    assert check().code == 0
    (tmp_path / "README.md").write_text("built anew\n")
    risen = check()
    assert (risen.code, "markdown: 1 phrases" in risen.err) == (1, True)
