"""The count of code lines: what counts as a line, and what a module of Python imports."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

import size  # noqa: E402 # it lies beside the other scripts

SQL = " OR ".join(["SELECT certname FROM nodes WHERE certname = ?"] * 4)


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("a.py", '"""Docstring."""\n\n# comment\nx = 1  # why\n', 1),
        ("a.py", 'def f():\n    """One."""\n    return """a\n\n    b"""\n', 4),
        ("a.py", 'x = (\n    "SELECT "\n    "1"\n)\n', 3),
        ("a.py", f'x = "{SQL}"\n', -(-len(SQL) // 100)),
        ("a.rb", "# comment\n\nx = 1 # why\n", 1),
        ("a.js", "// comment\n/* and\nanother */\nlet x = 1;\nlet y;\n", 2),
        ("a.css", "/* comment\n*/\na { b: c }\n", 1),
        ("a.html", "{# comment #}\n<p>\n<!-- \n -->\n" + "x" * 121 + "\n", 3),
        ("a.sql", f"-- comment\n{SQL}\n", -(-len(SQL) // 100)),
        ("share/schema.json", "{}", 0),
    ],
)
def test_a_line_counts_when_it_holds_code(name: str, text: str, lines: int) -> None:
    measured = size.measure(f"localpuppet/{name}", text)
    assert (measured.lines if measured else 0) == lines


def test_modules_with_one_importer_and_shared_names_are_counted() -> None:
    texts = {
        "localpuppet/a.py": "from localpuppet import c\nfrom .b import e\nfrom .d import c\n",
        "localpuppet/b.py": "import localpuppet.c\n",
        "localpuppet/c.py": "x = 1\n",
        "localpuppet/d/__init__.py": "",
        "localpuppet/d/c.py": "x = 1\n",
    }
    sizes = {path: measured for path in texts if (measured := size.measure(path, texts[path]))}
    summary = "\n".join(size.summarise(sizes))
    assert "python           6 lines" in summary
    assert "imports      66.7%" in summary
    assert "names            2 modules" in summary
    assert "importers        2 modules" in summary


def test_a_kind_above_its_maximum_is_named_and_recording_only_lowers_it() -> None:
    measured = size.measure("localpuppet/a.py", "x = 1\ny = 2\n")
    assert measured is not None
    sizes, maximum = {"localpuppet/a.py": measured}, dict.fromkeys(size.ORDER, 0)
    (message,) = size.find_excess(sizes, {**maximum, "python": 1})
    assert message.startswith("scripts/size.toml: python: 2 code lines, at most 1 ")
    assert not list(size.find_excess(sizes, {**maximum, "python": 2}))
    text = size.record(sizes, "[maximum]\npython = 7\nruby = 0\n")
    assert text == "[maximum]\npython = 2\nruby = 0\n"
    assert size.record(sizes, "[maximum]\npython = 1\n") == "[maximum]\npython = 1\n"


@pytest.mark.parametrize(
    "call",
    [
        ("size.py", "--files", "localpuppet/base/"),
        ("formats.py", "--keys"),
    ],
    ids=" ".join,
)
def test_a_script_that_prints_a_list_ends_quietly_when_its_reader_closes(
    call: tuple[str, ...],
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe:
        ended = subprocess.run(
            [sys.executable, ROOT / "scripts" / call[0], *call[1:]],
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (ended.returncode, ended.stderr) == (-signal.SIGPIPE, "")


@pytest.mark.parametrize(
    ("lines", "reasons", "problems"),
    [
        (600, {}, 0),
        (601, {}, 1),
        (601, {"a.py": "one concept"}, 0),
        (600, {"a.py": "one concept"}, 1),
        (601, {"a.py": "", **{f"{number}.py": "" for number in range(10)}}, 1),
    ],
)
def test_a_long_file_needs_a_reason_and_few_have_one(
    lines: int, reasons: dict[str, str], problems: int
) -> None:
    assert len(list(size.find_long({"a.py": lines}, reasons))) == problems
