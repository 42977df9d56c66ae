"""The causes and queries of a run, in the form that may leave the node."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import StateError
from localpuppet.base.formats.strict_json import compact
from localpuppet.node.runs.query_record import RecordedQuery, note_query, read_listed, write_listed
from localpuppet.node.runs.run_records import RunDirectory
from localpuppet.node.runs.run_replies import MAX_LIST, MAX_NAMES, run_context

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


def told(run: RunDirectory) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(asdict(run_context(run))))
    return found


def test_the_context_has_names_and_numbers_and_no_values(run: RunDirectory) -> None:
    causes = {"causes": [CAUSE], "count": 3}
    request = {"schema": 1, "causes": causes, "node_document": {"x": "canary"}}
    run.request.write_text(json.dumps(request))
    note_query(run, query("role=web", 30))
    resource = {"node": "db01", "ref": "Host[a]", "how": "guarded", "dropped": ["canary"]}
    collected = {"text": "Host <<| |>>", "resources": [resource, resource], "age": 2.0}
    run.collected.write_text(json.dumps({"schema": 1, "collectors": [collected]}))
    context = told(run)
    assert context["causes"] == [
        {"kind": "trigger", "sender": "lb01", "path": ["db01", "lb01"], "tags": ["haproxy"]}
    ]
    assert context["cause_count"] == 3
    (asked_query,) = context["queries"]
    assert (asked_query["text"], asked_query["count"], len(asked_query["names"])) == (
        "role=web",
        30,
        MAX_NAMES,
    )
    assert context["collected"] == [
        {"text": "Host <<| |>>", "count": 2, "names": ["db01"], "age": 2.0, "reason": ""}
    ]
    assert "canary" not in json.dumps(context)


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        ("/etc/puppet/input.yaml", "/etc/puppet/input.yaml"),
        ("-", "-"),
        ("https://who:canary@enc.example.com:8/n?token=canary#x", "https://enc.example.com:8/n"),
        ("https://[canary", "https"),
    ],
)
def test_the_origin_of_the_input_has_no_secrets(run: RunDirectory, place: str, shown: str) -> None:
    given = {"by": "choria=alice", "values": "canary"}
    request = {"schema": 1, "input": place, "input_sha256": "ab" * 32, "assignment": given}
    run.request.write_text(json.dumps(request))
    assert told(run)["origin"] == {"input": shown, "input_sha256": "ab" * 32, "by": "choria=alice"}


def test_the_context_of_a_run_without_queries_and_causes_is_empty(run: RunDirectory) -> None:
    origin = {"input": "", "input_sha256": "", "by": ""}
    lists = {"causes": [], "cause_count": 0, "queries": [], "collected": []}
    assert told(run) == {"origin": origin, **lists}


def test_the_list_of_causes_is_bounded_but_counted(run: RunDirectory) -> None:
    causes = {"causes": [CAUSE] * 5000, "count": 5000}
    run.request.write_text(json.dumps({"schema": 1, "causes": causes}))
    context = told(run)
    assert context["cause_count"] == 5000
    assert 0 < len(compact(context["causes"])) <= MAX_LIST


def test_a_damaged_record_is_an_error(run: RunDirectory) -> None:
    run.request.write_text("{")
    with pytest.raises(StateError):
        run_context(run)


@dataclass(frozen=True)
class Word:
    text: str

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> "Word":
        if "text" not in raw:
            raise StateError("is damaged: a word without its text")
        return cls(raw["text"])

    def to_dict(self) -> dict[str, Any]:
        return {"text": self.text}


def test_a_written_list_reads_back_as_equal(tmp_path: Path) -> None:
    path = tmp_path / "words.json"
    assert read_listed(path, "words", Word.of) == []
    write_listed(path, "words", [Word("a"), Word("b")])
    assert read_listed(path, "words", Word.of) == [Word("a"), Word("b")]


@pytest.mark.parametrize("text", ["", "[]", '{"words": 1}', '{"words": [{}]}'])
def test_a_damaged_list_is_an_error_with_its_file_and_not_empty(tmp_path: Path, text: str) -> None:
    path = tmp_path / "words.json"
    path.write_text(text)
    with pytest.raises(StateError, match="damaged") as caught:
        read_listed(path, "words", Word.of)
    assert caught.value.where == str(path)
