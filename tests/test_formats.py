"""The rename table, and what `scripts/formats --check` reports, which compares code and notes."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.rigs.node import completed

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import formats  # noqa: E402 # it lies beside the other scripts

GONE = (
    "of_the_bus",
    "spoken_for",
    "tells_changes",
    "files_of_data",
    "localpuppet_unconfirmed",
    "localpuppet_last_rollout_resumed",
    "localpuppet_last_rollout_began",
    "localpuppet_last_rollout_ended",
    "localpuppet_fork_server_memory_bytes",
    "lp-word",
    "lp-forgotten",
    "lp-rollout",
    "/words/",
    "/forgotten/",
    '"foreseen"',
    '"fate"',
    '"fault"',
    '"settled"',
    '"corrective"',
    '"disagrees"',
)
LIST = "in docs/formats.toml, list it below this format: in"
LISTED: dict[str, Any] = {"renamed": {}, "removed": ("note",), "added": ("schema",)}
RECORD = formats.RecordFormat(name="record", where="", keys=(), renamed={"fate": "result"})


def test_unambiguous_old_names_occur_nowhere() -> None:
    """No other format and no sentence uses these names."""
    command = ["git", "grep", "-nF", *(part for name in GONE for part in ("-e", name)), "--"]
    paths = ["localpuppet", "modules", "docs", "README.md", ":!docs/adr", ":!docs/formats.toml"]
    done = completed(*command, *paths, ":!docs/reference/renamed-keys.md", check=False, cwd=ROOT)
    assert (done.code, done.out) == (1, "")


def test_each_format_has_a_unique_name_and_each_reference_leads_to_keys() -> None:
    listed = formats.read_formats()
    assert len({format_.name for format_ in listed}) == len(listed)
    references = [reference for format_ in listed for reference in format_.keys]
    assert [name for name in references if not formats.collect_keys(name)] == []


@pytest.mark.parametrize(
    ("changes", "old", "new", "problem"),
    [
        ({}, "fate", "result", ""),
        ({}, "fate", "fate result", "the old key fate still occurs"),
        ({}, "fate", "", "the new key result does not occur"),
        (
            {},
            "fate run",
            "result",
            f"run is missing ({LIST} 'removed', or as old = new in 'renamed')",
        ),
        ({}, "fate", "result run", f"run is new ({LIST} 'added')"),
        ({}, "run", "result run", "fate never existed"),
        ({}, "fate result", "result", "fate is renamed to result, which was another key"),
        (
            {"renamed": {"fate": "result", "end": "result"}},
            "end fate",
            "result",
            "two keys are renamed to result",
        ),
        pytest.param(
            {"renamed": {"app": "release", "release": "release_digest"}},
            "app release",
            "release release_digest",
            "",
            id="a key may take the old name of another",
        ),
        (LISTED, "note", "schema", ""),
        (LISTED, "note schema", "schema", "schema is listed as added, and existed before"),
    ],
)
def test_a_difference_between_code_and_table_is_reported(
    changes: dict[str, Any], old: str, new: str, problem: str
) -> None:
    record = replace(RECORD, **changes)
    problems = formats.find_problems([record], {"record": old.split()}, {"record": new.split()})
    assert problems == ([f"record: {problem}"] if problem else [])


@pytest.mark.parametrize(
    ("reference", "code", "keys"),
    [
        ("x.py:Row", "class Row:\n    a: int\n    B: ClassVar[int] = 1\n", {"a"}),
        ("x.py:Kind", "class Kind(StrEnum):\n    WAITS = 'waits for'\n", {"waits for"}),
        ("x.py:Row.to_dict", "class Row:\n  def to_dict(self):\n    return {'a': 1}\n", {"a"}),
        ("x.py:add", "def add():\n    raw = {**old, 'a': 1}\n    raw['b'] = 2\n", {"a", "b"}),
        ("x.py:LATE", "SOON, LATE = 'soon', 'late'\n", {"soon", "late"}),
        ("x.py:ALL", "if deep:\n    ALL: Final = ('a', 'b')\n", {"a", "b"}),
        ("labels x.py", 'show(f\'up{{node="{n}",app="{a}"}} 1\')\n', {"node", "app"}),
        ("texts x.py:NAMES", "NAMES = {Row: 'row', Line: 'line'}\n", {"row", "line"}),
        ("metrics x.py", "NAMES = ('localpuppet_up', 'other_up')\n", {"localpuppet_up"}),
        ("prefixes x.py", "KEY = f'/leases/{name}'\n", {"/leases/"}),
        (
            "tables x.py",
            "SQL = 'CREATE TABLE t (id INTEGER, a TEXT CHECK (a IN (1, 2)), PRIMARY KEY (id));'",
            {"t.id", "t.a"},
        ),
    ],
)
def test_keys_are_read_from_code_without_running_it(
    tmp_path: Path, reference: str, code: str, keys: set[str]
) -> None:
    (tmp_path / "x.py").write_text(code)
    assert formats.collect_keys(reference, tmp_path) == keys


def test_properties_of_a_schema_are_keys_at_any_depth(tmp_path: Path) -> None:
    schema = """{"properties": {"a": {"properties": {"b": {}}}, "c": {"items": {"$ref": "#"}}},
                 "$defs": {"d": {"additionalProperties": {"properties": {"e": {}}}}}}"""
    (tmp_path / "x.json").write_text(schema)
    assert formats.collect_keys("schema x.json", tmp_path) == {"a", "a.b", "c", "$d.*.e"}


def test_a_reference_to_code_that_moved_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("class Row:\n    a: int\n")
    with pytest.raises(LookupError, match=r"x\.py:Line: name not found"):
        formats.collect_keys("x.py:Line", tmp_path)
    with pytest.raises(LookupError, match=r"y\.py:Row: file not found"):
        formats.collect_keys("y.py:Row", tmp_path)


@pytest.mark.parametrize(
    ("code", "functions"),
    [
        ("def to_dict():\n    return {'a': 1}\n", ["x.py:to_dict"]),
        ("class Row:\n  def show(self):\n    emit_json({'a': 1})\n", ["x.py:Row.show"]),
        ("def show():\n    write_json(path, row.to_dict())\n", []),
        ("def count():\n    return {'a': 1}\n", []),
    ],
)
def test_a_function_that_writes_keys_of_no_format_is_reported(
    tmp_path: Path, code: str, functions: list[str]
) -> None:
    (tmp_path / "x.py").write_text(code)
    assert formats.find_unlisted([], tmp_path) == functions
    listed = ["dicts x.py:Row" if name == "x.py:Row.show" else name for name in functions]
    assert formats.find_unlisted(listed, tmp_path) == []


def test_the_tables_of_the_notes_are_replaced_and_the_rest_stays() -> None:
    table = formats.render_table([RECORD])
    assert "## Record" in table
    assert "| `fate` | `result` |" in table
    listed = formats.render_table([replace(RECORD, **LISTED)])
    assert "| `note` | (removed) |" in listed
    assert "| (new) | `schema` |" in listed
    page = f"# Upgrading\n\n{formats.BEGIN}\noutdated\n{formats.END}\n\nThe rest.\n"
    replaced = formats.replace_table(page, table)
    assert "outdated" not in replaced
    assert replaced.startswith("# Upgrading\n\n")
    assert replaced.endswith("\n\nThe rest.\n")
    assert formats.replace_table(replaced, table) == replaced
