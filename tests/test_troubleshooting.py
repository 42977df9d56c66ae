"""The code has each message that the troubleshooting pages list."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs/operate").glob("troubleshooting*.md"))
# The first cell of each row: a message, with … for the parts that differ.
MESSAGES = [
    message
    for page in PAGES
    for message in re.findall(r"^\| `([^`]+)` \|", page.read_text("utf-8"), flags=re.MULTILINE)
]
# Joined at run time, from a text and the hint that follows it in parentheses.
JOINT = re.compile(r"…|\((?=are the clocks)|\((?=check)")


def texts() -> Iterator[str]:
    """Yield the texts of the code; a part that differs ends one text and starts the next."""
    for file in (ROOT / "localpuppet").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def test_the_code_has_each_message() -> None:
    code = "\0".join(texts())
    assert len(MESSAGES) > 40
    parts = [part.strip(" )") for message in MESSAGES for part in JOINT.split(message)]
    assert [part for part in parts if part not in code] == []
