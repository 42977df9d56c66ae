"""Captures on the way from a node to a file: rules, hostile nodes, kills between writes."""

import base64
import json
import resource
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import StateError
from localpuppet.base.formats.names import NodeName, RunId
from localpuppet.base.formats.strict_json import JsonText
from localpuppet.base.formats.values import Json
from localpuppet.fleet import captures
from localpuppet.fleet.bus.bus_limits import MAX_PACKED_CAPTURE
from localpuppet.fleet.captures import (
    CaptureKeeper,
    CaptureRules,
    collect_captures,
    note_answer,
    read_answers,
    read_capture,
    remove_answers,
)
from localpuppet.fleet.inventory.chunks import digest_of
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.facts import FactSelection
from localpuppet.fleet.requests.request import ChunkArguments
from localpuppet.fleet.requests.request_client import REPLY_CHUNK, NodeAnswer
from localpuppet.node.preview.node_capture import DEFAULT_PATTERNS, NodeCapture, WithheldKeys
from localpuppet.node.preview.preview_limits import MAX_CAPTURE
from localpuppet.node.runs.run_records import RunDirectory
from tests.doubles.answering_nodes import AnsweringNodes
from tests.fleet.inventory.entries import entry
from tests.fleet.make import random_text

WEB, DB = NodeName("web01.example.com"), NodeName("db01.example.com")
RUN = "20261125T120000.000000Z-0001"
LAX = CaptureRules(selection=FactSelection(), keys=WithheldKeys(()))
WITHHELD = {"__ptype": "Withheld", "type": "String"}


def recorded(directory: Path, **request: Any) -> RunDirectory:
    run = RunDirectory(directory / RUN)
    run.path.mkdir(parents=True, exist_ok=True)
    body = {"schema": 1, "layers": [], "data": {"classes": {}, "parameters": {}}, **request}
    run.request.write_text(json.dumps(body))
    return run


def published(facts: Mapping[str, Json], node: NodeName = WEB) -> InventoryEntry:
    return entry(node, at=1_764_000_000.5, run=RunId(RUN), facts=facts)


def kept(directory: Path, facts: Mapping[str, Json], node: NodeName = WEB) -> CaptureKeeper:
    keeper = CaptureKeeper(directory / "state", LAX)
    assert keeper.keep(recorded(directory / "runs"), published(facts, node)) == ""
    return keeper


def answering(keepers: Mapping[NodeName, CaptureKeeper]) -> AnsweringNodes:
    return AnsweringNodes("capture", keepers.get)


async def collected(
    nodes: AnsweringNodes, directory: Path, *names: NodeName
) -> dict[NodeName, str]:
    seen: list[tuple[NodeName, str]] = []
    problems = await collect_captures(
        nodes, names, directory, patience=1, progress=lambda *event: seen.append(event)
    )
    assert sorted(seen) == sorted((name, problems.get(name, "")) for name in names)
    return problems


def sending(capture: bytes, **header: Any) -> Callable[[dict[str, Any]], Any]:
    """Return what a node sends that packs these bytes as its capture."""
    packed = zlib.compress(capture)
    part = {"digest": digest_of(packed), "size": len(packed), **header}
    return lambda reply: {
        "capture": {**reply["capture"], **part},
        "data": base64.b64encode(packed).decode(),
    }


async def test_a_large_capture_comes_in_chunks_and_restarts_after_a_new_run(tmp_path: Path) -> None:
    nodes = answering({WEB: kept(tmp_path, {"text": random_text(3 * REPLY_CHUNK, 1)})})
    assert await collected(nodes, tmp_path / "nodes", WEB) == {}
    count = len(nodes.asked)
    assert count > 2

    def run_again(reply: dict[str, Any]) -> dict[str, Any]:
        if len(nodes.asked) == count + 1:
            kept(tmp_path, {"text": "small"})
        return reply

    nodes.change = run_again
    assert await collected(nodes, tmp_path / "nodes", WEB) == {}
    assert [args.chunk for args in nodes.asked[count:]] == [0, 1, 0]
    text = (tmp_path / "nodes" / f"{WEB}.json").read_bytes()
    assert NodeCapture.parse(text, node=WEB, where="").facts == {"text": "small"}


GOOD = NodeCapture(node=WEB, facts={"a": 1})
OTHER = NodeCapture(node=DB, facts={}).to_bytes()
BOMB = b'{"facts": {"a": "' + b"x" * (MAX_CAPTURE + 1) + b'"}}'


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda reply: {**reply, "data": "A" * len(reply["data"])}, "without the digest"),
        (lambda reply: {**reply, "data": "?"}, "unknown answer"),
        (lambda reply: {**reply, "data": ""}, "at most"),
        (lambda reply: {"data": reply["data"]}, "unknown answer"),
        (lambda reply: {**reply, "capture": []}, "unknown answer"),
        (lambda _: {}, "unknown answer"),
        (sending(b"{}", size=10**9), f"at most {MAX_PACKED_CAPTURE}"),
        (sending(b"{}", size=-1), "at most"),
        (sending(b"{}", size="1"), "unknown answer"),
        (sending(b"{}", digest="0" * 64), "without the digest"),
        (sending(b"{}"), "'facts' is missing"),
        (sending(b"[]"), "not a JSON object"),
        (sending(OTHER), f"must be {WEB}"),
        (sending(OTHER.replace(DB.encode(), b"../../x")), f"must be {WEB}"),
        (sending(b'{"facts": {}, "captured": "\\u001b[2J"}'), "not a time"),
        (sending(b'{"facts": {}, "x": 1}'), "unknown key 'x'"),
        (sending(b'{"facts": {"a":' + b"[" * 200 + b"]" * 200 + b"}}"), "nested too deep"),
        (sending(BOMB), "more than"),
        (lambda _: "denied \x1b[2J", "denied"),
    ],
)
async def test_a_hostile_node_is_refused_and_the_others_are_not(
    change: Callable[[dict[str, Any]], Any], problem: str, tmp_path: Path
) -> None:
    web, db = kept(tmp_path / "web", {"a": 1}), kept(tmp_path / "db", {"a": 2}, DB)
    nodes, directory = answering({WEB: web, DB: db}), tmp_path / "nodes"
    assert await collected(nodes, directory, WEB) == {}
    before = (directory / f"{WEB}.json").read_bytes()

    async def ask(node: NodeName, *args: Any, **options: Any) -> NodeAnswer:
        nodes.change = change if node == WEB else lambda reply: reply
        return await AnsweringNodes.ask(nodes, node, *args, **options)

    nodes.ask = ask  # type: ignore[method-assign]
    problems = await collected(nodes, directory, WEB, DB)
    assert list(problems) == [WEB]
    assert problem in problems[WEB]
    assert problems[WEB].startswith(f"capture of {WEB}: ")
    assert "\x1b" not in problems[WEB]
    assert (directory / f"{WEB}.json").read_bytes() == before
    written = [path.name for path in tmp_path.rglob("*.json") if "nodes" in path.parts]
    assert sorted(written) == [f"{DB}.json", f"{WEB}.json"]


async def test_captures_are_escaped_and_shortened_before_they_are_written(tmp_path: Path) -> None:
    raw = {"facts": {"a": "\x1b[2J</details>"}, "release": "r\x1b[2J\n" + "x" * 5000}
    nodes = answering({WEB: kept(tmp_path, {})})
    nodes.change = sending(json.dumps(raw).encode())
    assert await collected(nodes, tmp_path / "nodes", WEB) == {}
    data = (tmp_path / "nodes" / f"{WEB}.json").read_bytes()
    assert b"\x1b" not in data
    assert data.isascii()
    capture = NodeCapture.parse(data, node=WEB, where="")
    assert len(capture.release) <= 1024
    assert "\n" not in capture.release


async def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    directory, outside = tmp_path / "nodes", tmp_path / "outside"
    directory.mkdir()
    outside.write_text("precious")
    (directory / f"{WEB}.json").symlink_to(outside)
    assert await collected(answering({WEB: kept(tmp_path, {})}), directory, WEB) == {}
    assert outside.read_text() == "precious"
    assert not (directory / f"{WEB}.json").is_symlink()
    assert (directory / f"{WEB}.json").stat().st_mode & 0o777 == 0o600


@contextmanager
def file_limit(size: int) -> Iterator[None]:
    """Let the kernel refuse larger files to this process."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


async def test_a_failed_write_leaves_the_earlier_capture(tmp_path: Path) -> None:
    nodes = answering({WEB: kept(tmp_path / "w", {"a": 1}), DB: kept(tmp_path / "d", {"a": 1}, DB)})
    directory = tmp_path / "nodes"
    await collected(nodes, directory, WEB, DB)
    before = (directory / f"{WEB}.json").read_bytes()
    large = kept(tmp_path / "w", {"a": "x" * 100_000})
    nodes = answering({WEB: large, DB: kept(tmp_path / "d", {"a": 2}, DB)})
    with file_limit(50_000):
        problems = await collected(nodes, directory, WEB, DB)
    assert "File too large" in problems[WEB]
    assert list(problems) == [WEB]
    assert (directory / f"{WEB}.json").read_bytes() == before
    assert sorted(path.name for path in directory.iterdir()) == [f"{DB}.json", f"{WEB}.json"]


def test_the_rules_count_when_a_capture_is_stored_and_when_it_is_sent(tmp_path: Path) -> None:
    data = {"classes": {"app": {"password": "CANARY", "x": 1}}, "parameters": {"key": "CANARY"}}
    run = recorded(tmp_path, data=data, instance_facts=["role", "instance_id", "db", "zone"])
    facts_of_others = {"vault.example.com": {"api_token": "CANARY", "key": "CANARY", "x": 1}}
    note_answer(run, "query_facts", ["", ["a"]], facts_of_others)
    rows: list[dict[str, Json]] = [
        {"certname": "a", "name": "db_pass", "value": "CANARY"},
        {"path": ["a", "pin"]},
    ]
    note_answer(run, "puppetdb_query", ["facts {}"], [{**row, "value": "CANARY"} for row in rows])
    url = "https://app:CANARY@db.example.com"
    note_answer(run, "query_nodes", [{"api_token": "CANARY", "role": "web"}, url], [])
    facts: dict[str, Json] = {
        **{"site": "CANARY", "os": {"family": "Debian", "token": "CANARY"}, "role": "web"},
        **{"instance_id": "i-1", "db": "CANARY", "zone": "a"},
    }
    selection = FactSelection(facts=("role",), hide=("site*",))
    shown = CaptureRules(selection=selection, keys=WithheldKeys(shown=("zone",)))
    keeper = CaptureKeeper(tmp_path / "state", shown)
    assert keeper.keep(run, published(facts)) == ""
    assert b"CANARY" not in (tmp_path / "state" / "captures" / "last.json").read_bytes()

    def sent(keeper: CaptureKeeper) -> NodeCapture:
        reply: Any = keeper.reply(ChunkArguments())
        return read_capture(WEB, base64.b64decode(reply["data"]))

    capture = sent(keeper)
    assert capture.facts == {
        **{"os": {"family": "Debian", "token": WITHHELD}, "role": "web", "instance_id": "i-1"},
        **{"db": WITHHELD, "zone": "a"},
    }
    assert capture.data.classes == {"app": {"password": WITHHELD, "x": 1}}
    assert capture.data.parameters == {"key": WITHHELD}
    by_function = {query.function: query.answer for query in capture.queries}
    vault = {"api_token": WITHHELD, "key": WITHHELD, "x": 1}
    assert by_function["query_facts"] == {"vault.example.com": vault}
    assert by_function["puppetdb_query"] == [{**row, "value": WITHHELD} for row in rows]
    selection, keys = FactSelection(hide=("site*", "os.*")), WithheldKeys(("x", "password", "key"))
    stricter = CaptureRules(selection=selection, keys=keys)
    again = sent(CaptureKeeper(tmp_path / "state", stricter))
    assert again.facts == {"role": "web", "instance_id": "i-1", "db": WITHHELD, "zone": WITHHELD}
    assert again.data.classes["app"]["x"] == {"__ptype": "Withheld", "type": "Integer"}


@pytest.mark.parametrize("name", ["db_pass", "psk", "tlsKey", "auth", "access-key-id", "LicenceNo"])
def test_a_name_withholds_facts_parameters_and_answers_alike(tmp_path: Path, name: str) -> None:
    deep: Json = {"a": [{"b": {name: ["CANARY", 7]}}]}
    values: dict[str, Json] = {name: "CANARY", "deep": deep, "empty": {name: ""}}
    run = recorded(tmp_path, data={"classes": {"app": {"x": values}}, "parameters": {"x": values}})
    note_answer(run, "puppetdb_query", [values], [values])
    keys = WithheldKeys((*DEFAULT_PATTERNS, "*licence*"))
    rules = CaptureRules(selection=FactSelection(), keys=keys)
    assert CaptureKeeper(tmp_path / "state", rules).keep(run, published(values)) == ""
    stored = json.loads((tmp_path / "state" / "captures" / "last.json").read_text())["capture"]
    integer = {**WITHHELD, "type": "Integer"}
    expected = {
        **{name: WITHHELD, "empty": {name: ""}},
        "deep": {"a": [{"b": {name: [WITHHELD, integer]}}]},
    }
    (query,) = stored["queries"]
    for part in (
        *(stored["facts"], stored["classes"]["app"]["x"], stored["parameters"]["x"]),
        *(query["answer"][0], query["arguments"][0]),
    ):
        assert part == expected


@pytest.mark.parametrize(
    ("facts", "request_body", "problem"),
    [
        ({"text": random_text(MAX_CAPTURE + 1, 2)}, {}, "is too large"),
        ({}, {"data": {"classes": {"BAD": {}}}}, "BAD"),
        ({}, {"data": None}, "request.json: is damaged"),
    ],
)
def test_a_run_without_a_capture_never_shows_the_one_before(
    tmp_path: Path, facts: dict[str, Json], request_body: dict[str, Any], problem: str
) -> None:
    keeper = kept(tmp_path, {"a": 1})
    assert problem in keeper.keep(recorded(tmp_path / "runs", **request_body), published(facts))
    with pytest.raises(StateError, match=f"run {RUN}: has no capture: "):
        keeper.reply(ChunkArguments())
    assert "keeps no capture yet" in _problem(CaptureKeeper(tmp_path / "other", LAX))
    (tmp_path / "state" / "captures" / "last.json").write_text('{"schema": 1, "node": ')
    assert "captures/last.json" in _problem(keeper)
    (tmp_path / "state" / "captures" / "last.json").write_text('{"schema": 1, "node": "a"}')
    assert "is damaged" in _problem(keeper)


def _problem(keeper: CaptureKeeper) -> str:
    with pytest.raises(StateError) as caught:
        keeper.reply(ChunkArguments())
    return str(caught.value)


def test_answers_are_private_bounded_and_the_last_one_counts(tmp_path: Path) -> None:
    run = recorded(tmp_path)
    assert read_answers(run) == ()
    note_answer(run, "query_nodes", ["a"], JsonText(text='["x"]'))
    note_answer(run, "leader", ["m", 60], None)
    note_answer(run, "query_nodes", ["a"], JsonText(text='["x","y"]'))
    note_answer(run, "query_nodes", ["b"], JsonText(text='"' + "x" * captures.MAX_ANSWER + '"'))
    file = run.path / "answers.jsonl"
    assert file.stat().st_mode & 0o777 == 0o600
    answers = [(one.function, one.arguments, one.answer) for one in read_answers(run)]
    assert answers == [("query_nodes", ("a",), ["x", "y"]), ("leader", ("m", 60), None)]
    note_answer(run, "query_nodes", ["c"], [], limit=file.stat().st_size + 10)
    assert len(read_answers(run)) == 2
    file.write_bytes(file.read_bytes() + b'{"function": "que')
    with pytest.raises(StateError, match="is damaged"):
        read_answers(run)
    remove_answers(run)
    remove_answers(run)
    assert not file.exists()
