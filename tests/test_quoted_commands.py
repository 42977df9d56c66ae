"""Every `localpuppet …` in messages, help, documentation and scripts is a command that exists."""

import ast
import re
from collections.abc import Iterator

from tests.rigs.commands import problem_of, words_of
from tests.rigs.node import REPOSITORY, completed

QUOTED = re.compile(
    r"'(localpuppet [^'\n]+)'|`(localpuppet [^`\n]+)`|<code>(localpuppet [^<]+)</code>"
)
ELSE = (  # no calls
    "localpuppet compiled ruby 1",
    " localpuppet turns a release",
    '    localpuppet --root "$home/$node" "$@"',
)
FEWEST = 250  # a smaller number shows that the patterns miss most
LINE = (r" *(show )?localpuppet [a-z-]+( |$)", r" *(\S*[$#] )?localpuppet [a-z-]+( |$)")
VALUE = "X"  # in place of a value in an f-string
BLOCK = re.compile(r"^ *```(\S*)[^\n]*\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
QUOTES = re.compile(r"['`>]localpuppet\s")  # no other module quotes a command
SHELL = ("", "console", "sh", "shell", "bash", "text")


def files() -> list[str]:
    places = ("localpuppet", "docs", "modules", "scripts", "*.md")
    return [
        path
        for path in completed("git", "ls-files", *places, cwd=REPOSITORY).out.splitlines()
        if path != "CHANGELOG.md" and (REPOSITORY / path).is_file()
    ]


def literals(text: str) -> Iterator[str]:
    """Yield the strings of a module; values in f-strings are placeholders."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.JoinedStr):
            yield "".join(
                str(part.value) if isinstance(part, ast.Constant) else VALUE for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def calls(path: str, text: str) -> Iterator[tuple[str, bool]]:
    """Yield each call that a file quotes or has as a line of code, and whether it is complete."""
    if path.endswith(".html"):
        text = re.sub(r"\{\{.*?\}\}", VALUE, text)
    if path.endswith(".py") and not QUOTES.search(text):
        return
    passages = [" ".join(one.split()) for one in literals(text)] if path.endswith(".py") else [text]
    for passage in passages:
        for quoted in QUOTED.findall(passage):
            yield "".join(quoted), not path.endswith(".md")
    if not path.endswith((".py", ".html")):
        blocks = BLOCK.findall(text) if path.endswith(".md") else [("", text)]
        for block in (block for language, block in blocks if language in SHELL):
            for line in re.sub(r" *\\\n *", " ", block).splitlines():
                if re.match(LINE[path.endswith(".md")], line):
                    yield line, True


def test_each_quoted_command_exists() -> None:
    texts = {path: (REPOSITORY / path).read_text("utf-8", "replace") for path in files()}
    found = {path: [*calls(path, text)] for path, text in texts.items()}
    problems = [
        f"{path}: {call}: {problem}"
        for path, quoted in found.items()
        for call, complete in quoted
        if not call.startswith(ELSE)
        for words in words_of(call)
        if (problem := problem_of(words, complete=complete))
    ]
    assert problems == []
    assert sum(map(len, found.values())) > FEWEST
