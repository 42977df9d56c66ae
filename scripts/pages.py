"""Check the rules for single pages: words in a page, words in a sentence, and the linter's rules.

`scripts/style.toml` has the limits in its section `pages`. Code and markup do not count; inline
code, or a list of it, counts as one word.

Example:
    scripts/docs --pages
"""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from style import CONFIGURATION, ROOT, list_files, read_markdown

RUMDL = Path(sys.executable).with_name("rumdl")
_END = re.compile(r"(?<=[.!?:])[\"')*_]*\s+(?=[\"'(*_`\[]*(?:[A-Z0-9`]|--|localpuppet))|\s\|\s")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_LINK = re.compile(r"!?\[([^]]*)\]\([^)]*\)")


def read_sentences(text: str) -> Iterator[tuple[int, str]]:
    """Return each sentence of a page with the line where its paragraph starts.

    A list item, a heading and a cell of a table end a sentence, too.
    """
    blank = _COMMENT.sub(lambda comment: "\n" * comment[0].count("\n"), text)
    for passage in read_markdown(blank, "markdown"):
        words = _LINK.sub(r"\1", re.sub(r"`[^`]*`(, `[^`]*`)*", "`", passage.words))
        for sentence in _END.split(words):
            if sentence.strip(" |"):
                yield passage.line, sentence.strip(" |")


def count_words(sentence: str) -> int:
    """Return the number of words; punctuation between spaces is no word."""
    return sum(bool(re.search(r"[\w`]", word)) for word in sentence.split())


def find_problems(path: str, text: str, rules: Mapping[str, Any]) -> Iterator[str]:
    """Return what is wrong with a page, one line each.

    Args:
        path: The path of the page in the repository.
        text: Its Markdown.
        rules: The section `pages` of `scripts/style.toml`.
    """
    total = 0
    for line, sentence in read_sentences(text):
        words = count_words(sentence)
        total += words
        if words > rules["longest_sentence"] and not path.startswith("docs/adr/"):
            yield (
                f"{path}:{line}: sentence of {words} words, {rules['longest_sentence']} allowed"
                f" (split it): {sentence[:60]}…"
            )
    if total > rules["longest_page"] and not path.startswith(tuple(rules["long"])):
        yield f"{path}: page of {total} words, {rules['longest_page']} allowed (split it)"


def list_pages() -> list[str]:
    """Return the Markdown pages for which the rules hold."""
    skipped = ("tests/", "modules/", "docs/examples/", "changelog.d/", ".github/", ".gitlab/")
    return [path for path in list_files() if path.endswith(".md") and not path.startswith(skipped)]


def lint(pages: Sequence[str]) -> int:
    """Run the Markdown linter and return its exit code."""
    command = [str(RUMDL), "check", "--no-cache", "--quiet"]
    return subprocess.run([*command, *pages], cwd=ROOT, check=False).returncode


def main() -> int:
    """Check all pages and return the exit code."""
    rules = tomllib.loads(CONFIGURATION.read_text())["pages"]
    pages = list_pages()
    problems = [
        problem
        for path in pages
        for problem in find_problems(path, (ROOT / path).read_text("utf-8"), rules)
    ]
    for problem in problems:
        print(problem, file=sys.stderr)
    return max(lint(pages), 1 if problems else 0)


if __name__ == "__main__":
    sys.exit(main())
