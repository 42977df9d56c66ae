"""The pages about the architecture name modules, classes and functions that exist."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / f"docs/contribute/{name}.md" for name in ("architecture", "call-paths", "wiring")]
NAMED = sorted(
    {call for page in PAGES for call in re.findall(r"`([\w/]+\.py): (\w+)", page.read_text())}
)


@pytest.mark.parametrize(("module", "name"), NAMED, ids=lambda value: value)
def test_a_call_path_leads_to_what_exists(module: str, name: str) -> None:
    files = [path for path in ROOT.glob("localpuppet/**/*.py") if str(path).endswith(f"/{module}")]
    defined = {
        statement.name
        for file in files
        for statement in ast.parse(file.read_text()).body
        if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert name in defined
