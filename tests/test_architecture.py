"""The pages about the architecture name modules, classes and functions that exist."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / f"docs/contribute/{name}.md" for name in ("architecture", "call-paths", "wiring")]
NAMED = sorted(
    {
        call
        for page in PAGES
        for call in re.findall(r"`([\w/]+\.py):\s(\w+(?:\.\w+)?)", page.read_text())
    }
)


@pytest.mark.parametrize(("module", "name"), NAMED, ids=lambda value: value)
def test_a_call_path_names_existing_functions(module: str, name: str) -> None:
    files = [path for path in ROOT.glob("localpuppet/**/*.py") if str(path).endswith(f"/{module}")]
    defined = {name for file in files for name in _names(ast.parse(file.read_text()), "")}
    assert name in defined, f"{module} has no {name}: correct the call path in docs/contribute/"


def test_the_table_lists_each_package() -> None:
    table = (ROOT / "docs/contribute/architecture.md").read_text()
    packages = {
        "/".join(file.parent.relative_to(ROOT / "localpuppet").parts)
        for file in ROOT.glob("localpuppet/*/*/__init__.py")
    }
    described = {"cli", "wiring", "settings"}  # in one sentence, for all layers
    missing = {name for name in packages if name.split("/")[1] not in described} - set(
        re.findall(r"^\| `([\w/]+)`", table, re.MULTILINE)
    )
    assert missing == set(), "add rows to the table of packages in docs/contribute/architecture.md"


def _names(tree: ast.Module | ast.ClassDef, place: str) -> Iterator[str]:
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{place}{statement.name}"
        if isinstance(statement, ast.ClassDef):
            yield from _names(statement, f"{place}{statement.name}.")
