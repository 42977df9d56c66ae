"""Lists as files."""

import csv
import io
import json

import pytest

from localpuppet.web.kinds import Kind
from localpuppet.web.lists.exporting import as_csv, as_json, as_names, nodes_table
from localpuppet.web.row import Row

ROW = Row(node="a.example.com", kind=Kind.FAILED, ended=0.0, roles=("web", "lb"), why="x, y")


@pytest.mark.parametrize(
    "begin", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", " =1", "\uff1d1"]
)
def test_no_cell_is_a_formula(begin: str) -> None:
    row = Row(node="a", app=begin, roles=(begin,), why=begin)
    (_, cells) = csv.reader(io.StringIO(as_csv(nodes_table([row]))))
    assert [cell for cell in cells if cell == f"'{begin}"] == [f"'{begin}"] * 3


def test_csv_keeps_what_is_said() -> None:
    head, cells = csv.reader(io.StringIO(as_csv(nodes_table([ROW]))))
    said = dict(zip(head, cells, strict=True))
    assert (said["outcome"], said["roles"], said["why"]) == ("failed", "web lb", "x, y")
    assert said["ended"] == "1970-01-01T00:00:00.000000Z"


def test_json_says_as_of_when() -> None:
    told = json.loads(as_json(nodes_table([ROW]), as_of=0.0))
    assert (told["as_of"], told["nodes"][0]["roles"]) == (
        "1970-01-01T00:00:00.000000Z",
        ["web", "lb"],
    )
    assert json.loads(as_json(nodes_table([]), as_of=None)) == {
        "schema": 1,
        "as_of": None,
        "nodes": [],
    }


def test_names_are_one_a_line() -> None:
    assert as_names(nodes_table([ROW, Row(node="b")]).names) == "a.example.com\nb\n"
