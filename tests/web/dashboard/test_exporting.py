"""Lists as files."""

import csv
import io
import json
import re
from pathlib import Path

import pytest

from localpuppet.fleet.inventory.node_row import NodeRow
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.web.dashboard.differences import changes_table
from localpuppet.web.dashboard.listing import (
    Table,
    as_csv,
    as_json,
    as_names,
    failures_table,
    nodes_table,
    releases_table,
    rollouts_table,
)
from tests.fleet.make import a_row

PAGE = Path(__file__).parents[3] / "docs/reference/dashboard.md"

ROW = a_row(
    "a.example.com", outcome=Kind.FAILED, finished_at=0.0, roles=("web", "lb"), reason="x, y"
)


@pytest.mark.parametrize(
    ("cell", "neutral"),
    [
        *((begin, f"'{begin}") for begin in ("=1+1", "+1", "-1", "@SUM(A1)", " =1", "\uff1d1")),
        *((f"{blank}=1", f"'{blank}=1") for blank in ("\u00a0", "\u3000", "\u200b", "\ufeff")),
        ("\t=1", "'\t'=1"),
        ("\r=1", "'\r'=1"),
        ("a;=1", "a;'=1"),
        ("a; \u200b=1;+2", "a;' \u200b=1;'+2"),
        ("a\t\u00a0@b", "a\t'\u00a0@b"),
        ('a;"=1"', 'a;\'"=1"'),
        ("a\n-1", "a\n'-1"),
    ],
)
def test_no_part_of_a_cell_is_a_formula(cell: str, neutral: str) -> None:
    row = NodeRow(node="a", roles=(cell,), problem=cell)
    (_, cells) = csv.reader(io.StringIO(as_csv(nodes_table([row])), newline=""))
    assert cells.count(neutral) == 2


@pytest.mark.parametrize("cell", ["a-b", "a; b", "x=1", "1 + 1", "\u00a0a", "\u00fc;b"])
def test_a_cell_without_a_formula_is_unchanged(cell: str) -> None:
    (_, cells) = csv.reader(io.StringIO(as_csv(nodes_table([NodeRow(node="a", problem=cell)]))))
    assert cell in cells


def test_csv_keeps_the_texts_of_cells() -> None:
    head, cells = csv.reader(io.StringIO(as_csv(nodes_table([ROW]))))
    said = dict(zip(head, cells, strict=True))
    assert (said["outcome"], said["roles"], said["reason"]) == ("failed", "web lb", "x, y")
    assert said["finished_at"] == "1970-01-01T00:00:00.000000Z"


def test_json_has_the_time_of_the_last_update() -> None:
    told = json.loads(as_json(nodes_table([ROW]), last_updated=0.0))
    assert (told["last_updated"], told["nodes"][0]["roles"]) == (
        "1970-01-01T00:00:00.000000Z",
        ["web", "lb"],
    )
    assert json.loads(as_json(nodes_table([]), last_updated=None)) == {
        "schema": 1,
        "last_updated": None,
        "nodes": [],
    }


def test_the_text_form_has_a_name_on_each_line() -> None:
    assert as_names(nodes_table([ROW, a_row("b")]).names) == "a.example.com\nb\n"


@pytest.mark.parametrize(
    ("path", "table"),
    [
        ("/nodes", nodes_table([])),
        ("/failures", failures_table([])),
        ("/releases", releases_table([])),
        ("/rollouts", rollouts_table([])),
        ("/releases/difference", changes_table([])),
    ],
)
def test_the_documentation_lists_the_columns_of_each_file(path: str, table: Table) -> None:
    (columns,) = re.findall(
        rf"^\| `{path}` \| (`[a-z_]+`(?:, `[a-z_]+`)*) \|$", PAGE.read_text(), re.M
    )
    assert re.findall(r"[a-z_]+", columns) == list(table.columns)
