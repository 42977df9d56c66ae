"""The phrase check: which texts of a file it reads, and what it finds in them."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("text", ["`anew`", "[x](anew.md)", "```\nanew\n```", "text\n\n    anew\n"])
def test_code_in_a_page_does_not_count(text: str) -> None:
    assert find("docs/agent.md", text) == []


@pytest.mark.parametrize(
    ("path", "kind"),
    [("README.md", "markdown"), ("docs/adr/0001-x.md", "adr"), ("CHANGELOG.md", "changelog")],
)
def test_pages_adrs_and_the_changelog_are_separate_kinds(path: str, kind: str) -> None:
    assert find(path, "built anew") == [(kind, 1)]


def test_each_text_of_a_module_has_its_kind() -> None:
    text = """'''anew'''
# anew
@click.command()
@click.option("--x", help="anew")
def run_command():
    '''Run anew.'''
    raise Error("anew")
"""
    assert sorted(find("localpuppet/x.py", text)) == [
        ("comments", 2),
        ("docstrings", 1),
        ("help", 4),
        ("help", 6),
        ("strings", 7),
    ]


def test_all_texts_of_a_test_are_one_kind() -> None:
    assert find("tests/test_x.py", "# anew\nX = 'anew'\n") == [("tests", 2), ("tests", 1)]


def test_markup_of_a_template_does_not_count() -> None:
    text = "<p class='anew'>\n{# anew #}{{ anew }}\nbuilt anew</p>"
    assert find("localpuppet/web/templates/x.html", text) == [("templates", 3)]


def test_an_exception_does_not_count() -> None:
    assert find("README.md", "built anew", "built anew") == []


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
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "README.md").write_text("clean\n")

    def check() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(tmp_path / "scripts/style.py")]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert check().returncode == 0
    (tmp_path / "README.md").write_text("built anew\n")
    risen = check()
    assert risen.returncode == 1
    assert "markdown: 1 phrases" in risen.stderr
