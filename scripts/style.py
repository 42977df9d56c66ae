"""Count the phrases that the style guide replaces, by kind of text.

- Kinds: Markdown pages, ADRs, changelog, templates, help, string literals, docstrings, comments,
  and all texts of the tests.
- Code blocks, inline code, addresses of links and markup do not count.
- `scripts/style.toml` holds the phrases, the exceptions and the recorded counts. A kind that has
  more hits than recorded fails the check. Recorded counts only fall.

Example:
    scripts/style --show strings
"""

import argparse
import ast
import io
import re
import signal
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONFIGURATION = ROOT / "scripts/style.toml"
KINDS = (
    "markdown",
    "adr",
    "changelog",
    "templates",
    "help",
    "strings",
    "docstrings",
    "comments",
    "tests",
)
HELP_ARGUMENTS = {"help", "exits"}
SKIPPED = ("tests/data/", "tests/test_style.py", "docs/examples/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A text that a person reads: its kind, and the line on which it starts."""

    kind: str
    line: int
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Phrase:
    """A pattern that the style guide replaces, and what to write instead."""

    pattern: re.Pattern[str]
    instead: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A phrase in a text of a file."""

    kind: str
    path: str
    line: int
    excerpt: str
    instead: str


def read_markdown(text: str, kind: str) -> Iterator[Text]:
    """Return the paragraphs, list items and table rows of a page without its code."""
    fenced = False
    start, lines = 0, list[str]()
    for number, line in enumerate([*text.splitlines(), ""], 1):
        fence = line.lstrip().startswith(("```", "~~~"))
        begins = re.match(r"\s*([-*+>#|]|\d+\.)", line) is not None
        if lines and (fence or fenced or begins or not line.strip()):
            yield Text(kind=kind, line=start, words=" ".join(lines))
            lines = []
        if fence:
            fenced = not fenced
        elif not fenced and line.strip() and not re.match(r" {4,}\S", line):
            start = start if lines else number
            lines.append(re.sub(r"^\s*([-*+>#|]+|\d+\.)\s*", "", line).strip())


def read_template(text: str) -> Iterator[Text]:
    """Return the visible lines of an HTML template."""
    visible = re.sub(r"(?s)\{#.*?#\}|\{%.*?%\}|\{\{.*?\}\}|<!--.*?-->|<[^>]*>", _blank, text)
    for number, line in enumerate(visible.splitlines(), 1):
        if line.strip():
            yield Text(kind="templates", line=number, words=line.strip())


def _blank(markup: re.Match[str]) -> str:
    return "\n" * markup[0].count("\n")


def read_python(text: str) -> Iterator[Text]:
    """Return the docstrings, help texts, other string literals and comments of a module."""
    tree = ast.parse(text)
    docstrings = dict(_docstrings(tree))
    helps = set(_help_literals(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in helps:
            kind = docstrings.get(node, "strings")
            yield from _paragraphs(node.value, node.lineno, kind)
    for literal in helps:
        yield from _paragraphs(str(literal.value), literal.lineno, "help")
    yield from _comments(text)


def _docstrings(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
            yield first.value, "help" if _is_command(node) else "docstrings"


def _is_command(node: ast.AST) -> bool:
    return any(
        re.search(r"\.(command|group)\b", ast.unparse(decorator))
        for decorator in getattr(node, "decorator_list", ())
    )


def _help_literals(tree: ast.Module) -> Iterator[ast.Constant]:
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg in HELP_ARGUMENTS:
            for inner in ast.walk(node.value):
                if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                    yield inner


def _comments(text: str) -> Iterator[Text]:
    start, last, lines = 0, 0, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT:
            continue
        number = token.start[0]
        if lines and number != last + 1:
            yield Text(kind="comments", line=start, words=" ".join(lines))
            lines = []
        start = start if lines else number
        last = number
        lines.append(token.string.lstrip("#: "))
    if lines:
        yield Text(kind="comments", line=start, words=" ".join(lines))


def read_line_comments(text: str) -> Iterator[Text]:
    """Return the lines of a shell, Ruby, Puppet or JavaScript file that are comments."""
    for number, line in enumerate(text.splitlines(), 1):
        comment = re.match(r"\s*(?:#(?!!)|//)\s*(.+)", line)
        if comment:
            yield Text(kind="comments", line=number, words=comment[1])


def _paragraphs(text: str, line: int, kind: str) -> Iterator[Text]:
    for paragraph in re.split(r"\n\s*\n|\n(?=\s*[-*] )", text):
        yield Text(kind=kind, line=line, words=" ".join(paragraph.split()))


def read_file(path: str, text: str) -> Iterator[Text]:
    """Return the texts of a file, whose kind follows from its path."""
    if path.startswith(("tests/", "benchmarks/")):
        if path.endswith(".py"):
            for passage in read_python(text):
                yield Text(kind="tests", line=passage.line, words=passage.words)
    elif path.endswith(".md"):
        kind = "adr" if path.startswith("docs/adr/") else "markdown"
        changelog = path.startswith(("CHANGELOG.md", "changelog.d/"))
        yield from read_markdown(text, "changelog" if changelog else kind)
    elif path.endswith(".html"):
        yield from read_template(text)
    elif path.endswith(".py"):
        yield from read_python(text)
    elif path.endswith((".rb", ".pp", ".js")) or text.startswith("#!/bin/sh"):
        yield from read_line_comments(text)


def find_hits(path: str, text: str, phrases: list[Phrase], allowed: list[str]) -> Iterator[Hit]:
    """Return each phrase that the texts of a file contain."""
    for passage in read_file(path, text):
        words = re.sub(r"(?<=\])\([^)]*\)", "", re.sub(r"`[^`]*`", "`", passage.words))
        for exception in allowed:
            words = words.replace(exception, "")
        for phrase in phrases:
            for match in phrase.pattern.finditer(words):
                excerpt = words[max(0, match.start() - 30) : match.end() + 30]
                yield Hit(
                    kind=passage.kind,
                    path=path,
                    line=passage.line,
                    excerpt=excerpt,
                    instead=phrase.instead,
                )


def list_files() -> list[str]:
    """Return the paths of all files that git tracks or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return [path for path in listed.stdout.splitlines() if (ROOT / path).is_file()]


def find_all_hits(configuration: dict[str, list[dict[str, str]]]) -> list[Hit]:
    """Return the hits of all files."""
    phrases = [
        Phrase(pattern=re.compile(row["pattern"], re.IGNORECASE), instead=row["instead"])
        for row in configuration["phrases"]
    ]
    allowed = [row["text"] for row in configuration.get("exceptions", [])]
    hits = list[Hit]()
    for path in list_files():
        file = ROOT / path
        if path.startswith(SKIPPED) or file.suffix in {".png", ".svg"}:
            continue
        hits.extend(find_hits(path, file.read_text(errors="replace"), phrases, allowed))
    return hits


def record_counts(counts: dict[str, int]) -> None:
    """Write the counts into the configuration, in place of the recorded ones."""
    rows = "".join(f"{kind} = {count}\n" for kind, count in counts.items())
    text = CONFIGURATION.read_text()
    section = re.compile(r"(?m)^\[counts\]\n(\w+ = \d+\n)*")
    CONFIGURATION.write_text(section.sub(f"[counts]\n{rows}", text, count=1))


def main() -> int:
    """Compare the counts with the recorded ones and return the exit code."""
    parser = argparse.ArgumentParser(description="Count phrases that the style guide replaces.")
    parser.add_argument("--show", metavar="KIND", choices=KINDS, help="list the hits of a kind")
    parser.add_argument("--record", action="store_true", help="record counts that have fallen")
    options = parser.parse_args()
    configuration = tomllib.loads(CONFIGURATION.read_text())
    recorded: dict[str, int] = configuration["counts"]
    hits = find_all_hits(configuration)
    counts = {kind: sum(hit.kind == kind for hit in hits) for kind in KINDS}
    risen = [kind for kind in KINDS if counts[kind] > recorded.get(kind, sys.maxsize)]
    for hit in hits:
        if hit.kind == options.show:
            print(f"{hit.path}:{hit.line}: …{hit.excerpt}… (instead: {hit.instead})")
    print(", ".join(f"{kind} {counts[kind]} ({recorded.get(kind, '-')})" for kind in KINDS))
    for kind in risen:
        print(
            f"{kind}: {counts[kind]} phrases of the style guide's list, {recorded[kind]} recorded "
            f"(rewrite the new ones: 'scripts/style --show {kind}')",
            file=sys.stderr,
        )
    if options.record and not risen:
        record_counts(counts)
    return 1 if risen else 0


if __name__ == "__main__":
    # A reader that has seen enough, such as `head`, ends the program without a message.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
