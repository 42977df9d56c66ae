"""The packages: each package's map names its modules, and a class name means one class.

The contracts of import-linter say which package may import which; these tests say that a reader
who opens a package finds what its map promises.
"""

import ast
import re
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "localpuppet"
# Groups of commands are code: their help lists what they contain.
GROUPS = ("node/cli/release",)
PACKAGES = sorted(
    file.parent
    for file in ROOT.rglob("__init__.py")
    if file.parent not in (ROOT, *(ROOT / group for group in GROUPS))
    and file.parent.name != "schemas"
)
MAX_MODULES = 30
# What texts in the code quote with a dot, beside modules: settings, keys, facts, names, files.
QUOTED = re.compile(
    r"(?:buses|capture|classes|hosts|inventory|modules|networking|parameters|temp|web01|eth0)\..+"
    r"|.+\.(?:conf|facts|html|js|json|lock|pp|prom|proto|py|rb|sh|toml|yaml)"
)

NAMED = re.compile(r"\blocalpuppet(?:\.\w+)+")
IMPORTED = re.compile(r"^ *from (localpuppet[\w.]*) import (\([^)]*\)|.+)$", re.MULTILINE)


def _name(package: Path) -> str:
    return str(package.relative_to(ROOT))


@pytest.mark.parametrize("package", PACKAGES, ids=_name)
def test_a_package_has_few_modules_no_code_and_a_map_that_names_each_once(package: Path) -> None:
    text = (package / "__init__.py").read_text()
    tree = ast.parse(text)
    assert (len(tree.body), ast.get_docstring(tree) is not None) == (1, True)
    named = re.findall(r"`([a-z_]+)`", text.partition("\n\n")[2])
    modules = {file.stem for file in package.glob("*.py")} - {"__init__"}
    inner = {file.parent.name for file in package.glob("*/__init__.py")}
    assert sorted(named) == sorted(modules | inner), (
        f"list each module of {_name(package)} once in the map of its __init__.py"
    )
    assert len(modules) < MAX_MODULES, f"split {_name(package)} into inner packages"


def _users() -> dict[str, set[str]]:
    """Return the modules that import a module or name it in a text, by module."""
    users: dict[str, set[str]] = defaultdict(set)
    for file in ROOT.rglob("*.py"):
        user = ".".join(file.relative_to(ROOT.parent).with_suffix("").parts)
        text = file.read_text()
        names = NAMED.findall(text)
        for module, imported in IMPORTED.findall(text):
            names += [f"{module}.{name}" for name in re.findall(r"\w+", imported)]
        for name in names:
            users[name].add(user)
    return users


def test_a_map_lists_as_private_what_only_its_package_imports() -> None:
    """All other modules are what a package offers. Commands are loaded by name, and offer none."""
    users, problems = _users(), []
    for package in (one for one in PACKAGES if "cli" not in one.parts and one.parent != ROOT):
        name = ".".join(package.relative_to(ROOT.parent).parts)
        map_ = (package / "__init__.py").read_text()
        private = re.findall(r"`([a-z_]+)`", map_.partition("\nprivate: ")[2])
        for module in sorted({file.stem for file in package.glob("*.py")} - {"__init__"}):
            outside = {
                user for user in users[f"{name}.{module}"] if not user.startswith(f"{name}.")
            }
            if (module in private) == bool(outside):
                problems.append(f"{name}.{module}: {min(outside, default='no other package')}")
    assert problems == [], "a map lists a module as private if no other package imports it"


def test_texts_in_the_code_name_modules_that_exist() -> None:
    """A text that names a module, or a name in it, is found by a reader who follows it."""
    modules: dict[str, str] = {}
    for file in ROOT.rglob("*.py"):
        parts = file.relative_to(ROOT.parent).with_suffix("").parts
        for start in range(len(parts)):
            path = ".".join(parts[start:]).removesuffix(".__init__")
            modules[path] = modules.get(path, "") + file.read_text()

    def exists(name: str) -> bool:
        words = name.split(".")
        known = {*sys.stdlib_module_names, "click"}
        if words[0] in known or QUOTED.fullmatch(name):
            return True
        return any(
            ".".join(words[:end]) in modules
            and all(
                re.search(rf"\b{word}\b", modules[".".join(words[:end])]) for word in words[end:]
            )
            for end in range(1, len(words) + 1)
        )

    quoted = re.compile(r"`([a-z_][a-z_0-9]*(?:\.\w+)+)`")
    missing = [
        f"{_name(file)}: {name}"
        for file in sorted(ROOT.rglob("*.py"))
        for name in quoted.findall(file.read_text())
        if not exists(name)
    ]
    assert missing == [], "the module was moved or joined: name where it is now"


@pytest.mark.parametrize("layer", ["base", "node"])
def test_tests_of_lower_layers_import_no_layer_above(layer: str) -> None:
    """An installation without extras runs them (tests/test_node_alone.py)."""
    above = r"(?:localpuppet|tests)\.(?:fleet|rollout|web)\b"
    imported = re.compile(rf"^\s*(?:from|import) ({above}.*)", re.MULTILINE)
    tests = (Path(__file__).parent / layer).rglob("*.py")
    imports = {str(test): imported.findall(test.read_text()) for test in tests}
    assert {test: names for test, names in imports.items() if names} == {}


def test_the_name_of_a_public_class_is_unique() -> None:
    modules: dict[str, list[str]] = defaultdict(list)
    for file in ROOT.rglob("*.py"):
        for name in re.findall(r"^class ([A-Za-z]\w*)", file.read_text(), re.MULTILINE):
            modules[name].append(str(file.relative_to(ROOT)))
    shared = {name: files for name, files in modules.items() if len(files) > 1}
    assert shared == {}, "rename these classes, each to a domain noun plus its role"
