"""The rules for single pages, and the navigation that follows from the index pages."""

import sys
from pathlib import Path
from runpy import run_path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import pages  # noqa: E402 # it lies beside the other scripts

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
