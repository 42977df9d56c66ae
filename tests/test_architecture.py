"""The pages about the architecture name modules, classes and functions that exist."""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import drawing  # noqa: E402 # it lies beside the other scripts

PAGES = [ROOT / f"docs/contribute/{name}.md" for name in ("architecture", "call-paths", "wiring")]


def test_a_call_path_names_existing_functions() -> None:
    named: dict[str, set[str]] = {}
    for page in PAGES:
        for module, name in re.findall(r"`([\w/]+\.py):\s(\w+(?:\.\w+)?)", page.read_text()):
            named.setdefault(module, set()).add(name)
    assert len(named) > 30
    files = [str(path) for path in ROOT.glob("localpuppet/**/*.py")]
    missing = {}
    for module, names in named.items():
        texts = [Path(file).read_text() for file in files if file.endswith(f"/{module}")]
        missing[module] = names - {name for text in texts for name in _names(ast.parse(text), "")}
    assert {module: names for module, names in missing.items() if names} == {}, (
        "correct the call paths in docs/contribute/"
    )


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
    rows = re.findall(r"^\| `([\w/.]+)` \|.*\| (`[^|]+) \|$", table, re.MULTILINE)
    assert len(rows) > 20
    for package, files in rows:
        place = ROOT / "localpuppet" / package
        for name in re.findall(r"`([^`]+)`", files):
            assert ((place if place.is_dir() else place.parent) / name).is_file(), (package, name)


def test_the_drawing_has_a_box_for_each_package_to_the_left_of_what_it_imports() -> None:
    """tests/test_reference.py compares it with the code, box by box."""
    text = (ROOT / "docs/images/architecture.svg").read_text()
    shown = re.findall(r'<text class="name" x="(\d+)" y="(\d+)">(\w+)</text>', text)
    packages = [file.parent.name for file in ROOT.glob("localpuppet/*/*/__init__.py")]
    assert sorted({name for _, _, name in shown} & set(packages)) == sorted(set(packages))
    places = {name: (int(y), int(x)) for x, y, name in shown if name in ("journal", "events")}
    assert places["journal"] < places["events"]


LIMIT = re.compile(r"^_?MAX_\w+ *(?::[^=]+)?= *[0-9]", re.MULTILINE)


def test_limits_of_a_boundary_stand_in_its_table() -> None:
    boundaries = "fleet/requests fleet/triggers node/releases/forge node/releases/git web/puppetdb"
    for package in boundaries.split():
        files = sorted((ROOT / "localpuppet" / package).rglob("*.py"))
        assert len(files) > 1
        assert [file.name for file in files if LIMIT.search(file.read_text())] == [], package


@pytest.mark.parametrize(
    ("imports", "message"),
    [
        ({"node/runs": {"web/access"}, "web/access": set()}, "node/runs imports web/access"),
        ({"node/runs": {"node/enc"}, "node/enc": {"node/runs"}}, "node/enc, node/runs"),
    ],
)
def test_imports_without_an_order_cannot_be_drawn(
    imports: dict[str, set[str]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        drawing.find_columns("node", {unit: frozenset(names) for unit, names in imports.items()})


def _names(tree: ast.Module | ast.ClassDef, place: str) -> Iterator[str]:
    for statement in tree.body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{place}{statement.name}"
        if isinstance(statement, ast.ClassDef):
            yield from _names(statement, f"{place}{statement.name}.")
