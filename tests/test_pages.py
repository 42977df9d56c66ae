"""The rules for single pages, and the navigation that follows from the index pages."""

import shutil
import sys
from pathlib import Path
from runpy import run_path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import pages  # noqa: E402 # it lies beside the other scripts

from tests.rigs.node import Done, completed  # noqa: E402

RULES = {"longest_page": 20, "longest_sentence": 5, "long": ["docs/contribute/"]}


def problems(text: str, path: str = "docs/start/install.md") -> list[str]:
    return list(pages.find_problems(path, text, RULES))


def test_a_long_sentence_is_reported_with_its_line_and_length() -> None:
    (problem,) = problems("# Title\n\nShort one. This sentence has clearly six words.\n")
    assert problem.startswith("docs/start/install.md:3: sentence of 6 words, 5 allowed")
    assert len(problems("one two three\nfour five six\n")) == 1, "across line ends"


@pytest.mark.parametrize(
    "text",
    [
        "One two three. Four five six.",
        "One two three. localpuppet runs five six.",
        "One two three. --text shows five six.",
        "- one two three\n- four five six\n",
        "| one two three | four five six |\n",
        "Keys are `a`, `b`, `c`, `d`, `e`.",
        "Run `localpuppet apply --noop --verbose` then `localpuppet status` again.",
        "See [one two three](a/very/long/path.md#with-an-anchor) here.",
        "<!-- one two three four five six seven -->\n\ntext\n",
        "one two three four five\n\nsix seven\n",
    ],
)
def test_cells_items_code_and_addresses_do_not_make_a_sentence_longer(text: str) -> None:
    assert problems(text) == []


def test_a_long_page_is_reported() -> None:
    text = "One two three four.\n\n" * 6
    assert problems(text) == ["docs/start/install.md: page of 24 words, 20 allowed (split it)"]
    assert problems(text, "docs/contribute/architecture.md") == []


def test_the_navigation_has_the_pages_that_an_index_page_lists_and_no_link_leaves() -> None:
    prepare_page = run_path(str(ROOT / "docs/conf.py"))["prepare_page"]
    text = "1. [One](one.md): a page.\n- [Two](../two/index.md)\n\nSee [three](three.md).\n"
    source = [text]
    prepare_page(None, "start/index", source)
    assert source[0].endswith("```{toctree}\n:hidden:\n\none\n../two/index\n```\n")
    page = [text]
    prepare_page(None, "start/install", page)
    assert page == [text]

    # The site keeps the text of links that only a forge can follow.
    page = [
        "[a](../../README.md#x) [b](../examples) [c](install.md) [d](../../no.md) ![e](../images)"
    ]
    prepare_page(None, "start/install", page)
    assert page == ["a b [c](install.md) [d](../../no.md) ![e](../images)"]


def test_pictures_that_are_older_than_a_template_are_reported(tmp_path: Path) -> None:
    script, shown = "scripts/screenshots", "localpuppet/web/dashboard"
    shutil.copytree(ROOT / shown / "templates", tmp_path / shown / "templates")
    shutil.copytree(ROOT / shown / "static", tmp_path / shown / "static")
    for directory in ("scripts", "docs/images"):
        (tmp_path / directory).mkdir(parents=True)
    shutil.copy(ROOT / script, tmp_path / script)

    def call(option: str) -> Done:
        return completed(tmp_path / script, option, check=False)

    assert call("--unchanged").code == call("--check").code == 0
    (tmp_path / shown / "templates/node.html").write_text("{% extends 'base.html' %}\n")
    (tmp_path / shown / "templates/new.html").touch()
    older = call("--check")
    assert older.code == 1
    assert "older than templates/new.html templates/node.html (run scripts/screenshots" in older.err
    (tmp_path / "docs/images/dashboard.sha256").unlink()
    assert call("--check").code == 1
