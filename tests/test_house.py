"""The house: each room's map names its files, and rooms hold no code of their own.

The contracts of import-linter say who may use whom; these tests say that a reader who enters a room
finds what is there.
"""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "localpuppet"
ROOMS = sorted(
    file.parent
    for file in PACKAGE.rglob("__init__.py")
    # Groups of verbs are code: what they hold stands in the help that they print.
    if file.parent not in (PACKAGE, PACKAGE / "fleet/cli/keys", PACKAGE / "node/cli/release")
    and file.parent.name != "schemas"
)
MOST = 30


def _name(room: Path) -> str:
    return str(room.relative_to(PACKAGE))


@pytest.mark.parametrize("room", ROOMS, ids=_name)
def test_a_room_has_a_map_and_no_code(room: Path) -> None:
    statements = ast.parse((room / "__init__.py").read_text()).body
    assert len(statements) == 1
    assert ast.get_docstring(ast.Module(body=statements, type_ignores=[]))


@pytest.mark.parametrize("room", ROOMS, ids=_name)
def test_the_map_names_every_file_once_and_nothing_else(room: Path) -> None:
    text = (room / "__init__.py").read_text()
    _, _, lists = text.partition("\n\n")
    named = re.findall(r"`([a-z_]+)`", lists)
    files = {file.stem for file in room.glob("*.py")} - {"__init__"}
    inner = {file.parent.name for file in room.glob("*/__init__.py")}
    assert sorted(named) == sorted(files | inner)


@pytest.mark.parametrize("layer", ["base", "node"])
def test_tests_of_lower_layers_import_no_layer_above(layer: str) -> None:
    """An installation without extras runs them (tests/test_node_alone.py)."""
    above = r"(?:localpuppet|tests)\.(?:fleet|rollout|web)\b"
    imported = re.compile(rf"^\s*(?:from|import) ({above}.*)", re.MULTILINE)
    tests = (Path(__file__).parent / layer).rglob("*.py")
    found = {str(test): imported.findall(test.read_text()) for test in tests}
    assert {test: names for test, names in found.items() if names} == {}


@pytest.mark.parametrize("room", ROOMS, ids=_name)
def test_no_room_is_a_heap(room: Path) -> None:
    assert len(list(room.glob("*.py"))) <= MOST
