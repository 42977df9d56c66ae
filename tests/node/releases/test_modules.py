"""Kinds of places of modules register themselves, and nothing else knows them by name."""

import ast
import re
from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.node.releases.modules import all_sources, parse_module, parse_pin

ROOT = Path(__file__).parents[3] / "localpuppet"
FORGE = re.compile(r"forge(?![dtrj])", re.IGNORECASE)
# The Forge's own room, its settings, and the word `forge` of a Puppetfile.
ROOMS = (
    "node/releases/forge/",
    "node/settings.py",
    "node/releases/author/puppetfile",
    "node/cli/release/import_puppetfile.py",
)


def test_every_kind_with_a_module_is_registered_under_the_name_of_its_package() -> None:
    assert [source.kind for source in all_sources()] == ["git", "forge"]
    for source in all_sources():
        module = f"localpuppet.node.releases.{source.kind}.{source.kind}_modules"
        assert source.__module__ == module


def test_an_entry_of_no_kind_lists_all_kinds() -> None:
    with pytest.raises(InvalidInputError) as refused:
        parse_module("x", {"svn": "https://x", "tag": "v1"}, where="modules.x", allow_file=False)
    assert str(refused.value) == (
        "modules.x: names neither git nor forge ({git: URL, tag: TAG | commit: SHA |"
        " branch: NAME} or {forge: OWNER/NAME, version: V})"
    )


@pytest.mark.parametrize("kind", ["pathlib", "../forge", "git.git_names", "__init__"])
def test_a_name_that_is_no_kind_loads_no_code(kind: str) -> None:
    with pytest.raises(InvalidInputError, match="names neither"):
        parse_module("x", {kind: "y"}, where="", allow_file=False)
    with pytest.raises(InvalidInputError, match="'url' is missing"):
        parse_pin({kind: "y"}, where="", allow_file=False)


def _words(file: Path) -> list[str]:
    """Return the names and texts in a file, without docstrings."""
    tree = ast.parse(file.read_text())
    texts = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    words: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts:
            words.append(node.value)
        words += [
            value
            for name in ("id", "attr", "arg", "name", "module")
            if isinstance(value := getattr(node, name, None), str)
        ]
    return words


def test_only_its_room_and_its_settings_name_the_forge() -> None:
    named = {
        name
        for file in ROOT.rglob("*.py")
        if not (name := file.relative_to(ROOT).as_posix()).startswith(ROOMS)
        and FORGE.search(file.read_text())
        and any(FORGE.search(word) for word in _words(file))
    }
    # A list of plain words for messages, and the table of limits.
    assert named == {"node/puppet/fault.py", "node/releases/limits.py"}
