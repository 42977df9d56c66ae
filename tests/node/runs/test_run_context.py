"""What led to a run and what it asked, as it may leave the node."""

import json
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import StateError
from localpuppet.base.formats.json_text import compact
from localpuppet.node.runs.query_record import RecordedQuery, note_query
from localpuppet.node.runs.records import RunDirectory
from localpuppet.node.runs.run_context import MAX_LIST, MAX_NAMES, run_context

AT = "2026-11-22T11:00:00.000000Z"
CAUSE = {
    "kind": "trigger",
    "sender": "lb01",
    "uuid": "u",
    "tags": ["haproxy"],
    "path": ["db01", "lb01"],
    "changes": [{"query": "canary"}],
}


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    path = tmp_path / "20261120T140000.000000Z-abcd"
    path.mkdir()
    return RunDirectory(path)


def query(text: str, count: int) -> RecordedQuery:
    names = tuple(f"n{number:03}" for number in range(count))
    return RecordedQuery(
        function="query", arguments=(text,), text=text, at=AT, digest="x", names=names, age=1.5
    )


def test_names_and_numbers_are_told_and_no_values(run: RunDirectory) -> None:
    causes = {"causes": [CAUSE], "count": 3}
    request = {"schema": 1, "causes": causes, "node_document": {"x": "canary"}}
    run.request.write_text(json.dumps(request))
    note_query(run, query("role=web", 30))
    resource = {"node": "db01", "ref": "Host[a]", "how": "guarded", "dropped": ["canary"]}
    collected = {"text": "Host <<| |>>", "resources": [resource, resource], "age": 2.0}
    run.collected.write_text(json.dumps({"schema": 1, "collectors": [collected]}))
    told: dict[str, Any] = run_context(run)
    assert told["causes"] == [
        {"kind": "trigger", "sender": "lb01", "path": ["db01", "lb01"], "tags": ["haproxy"]}
    ]
    assert told["cause_count"] == 3
    (asked,) = told["queries"]
    assert (asked["text"], asked["count"], len(asked["names"])) == ("role=web", 30, MAX_NAMES)
    assert told["collected"] == [
        {"text": "Host <<| |>>", "count": 2, "names": ["db01"], "age": 2.0, "reason": ""}
    ]
    assert "canary" not in json.dumps(told)


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("/etc/puppet/input.yaml", "/etc/puppet/input.yaml"),
        ("-", "-"),
        ("https://who:canary@enc.example.com:8/n?token=canary#x", "https://enc.example.com:8/n"),
        ("https://[canary", "https"),
    ],
)
def test_where_the_input_is_from_is_told_without_what_may_be_secret(
    run: RunDirectory, place: str, told: str
) -> None:
    given = {"by": "choria=alice", "values": "canary"}
    request = {"schema": 1, "input": place, "input_sha256": "ab" * 32, "assignment": given}
    run.request.write_text(json.dumps(request))
    assert run_context(run)["origin"] == {
        "input": told,
        "input_sha256": "ab" * 32,
        "by": "choria=alice",
    }


def test_a_run_that_asked_nothing_tells_nothing(run: RunDirectory) -> None:
    origin = {"input": "", "input_sha256": "", "by": ""}
    lists = {"causes": [], "cause_count": 0, "queries": [], "collected": []}
    assert run_context(run) == {"origin": origin, **lists}


def test_so_much_is_told_and_no_more(run: RunDirectory) -> None:
    causes = {"causes": [CAUSE] * 5000, "count": 5000}
    run.request.write_text(json.dumps({"schema": 1, "causes": causes}))
    told: dict[str, Any] = run_context(run)
    assert told["cause_count"] == 5000
    assert 0 < len(compact(told["causes"])) <= MAX_LIST


def test_a_damaged_record_is_an_error(run: RunDirectory) -> None:
    run.request.write_text("{")
    with pytest.raises(StateError):
        run_context(run)
