"""Queries of Puppet code about nodes: a recorded answer, or an error."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError, StateError, UnavailableError
from localpuppet.base.formats.names import RunId
from localpuppet.base.formats.strict_json import members
from localpuppet.base.formats.values import Json
from localpuppet.fleet.agent.code_calls import InventoryCalls, QueryCall
from localpuppet.fleet.inventory.reading import InventoryReader
from localpuppet.node.runs.query_record import (
    MAX_PARTS,
    MAX_QUERIES,
    RecordedQuery,
    note_query,
    read_queries,
)
from localpuppet.node.runs.run_records import Records, RunDirectory
from tests.doubles.inventory import MemoryInventory
from tests.doubles.ports import FakeClock, FakeProcesses
from tests.fleet.inventory.query.fleet import FLEET, LB, WEB1

FIRST = "20261120T140000.000000Z-abcd"
SECOND = "20261120T150000.000000Z-abcd"


class Rig:
    def __init__(self, directory: Path) -> None:
        self.clock = FakeClock()
        self.inventory = MemoryInventory(FLEET, current=self.clock.now().timestamp() - 2)
        self.away: UnavailableError | None = None
        self.records = Records(directory, FakeProcesses())
        self.calls = InventoryCalls(
            self.lend, max_stale=900, records=self.records, clock=self.clock
        )

    @asynccontextmanager
    async def lend(self, _: RunId | None) -> AsyncGenerator[InventoryReader, None]:
        if self.away:
            raise self.away
        yield self.inventory

    def begin(self, name: str) -> RunDirectory:
        run = RunDirectory(self.records.directory / name)
        run.path.mkdir(parents=True)
        (run.path / ".reserve").touch()
        return run

    async def ask(self, function: str, *arguments: Json, run: str | None = None) -> dict[str, Any]:
        call = QueryCall.read({"function": function, "arguments": list(arguments)})
        answer: dict[str, Any] = json.loads(members(await self.calls.answer(call, run)))
        return answer


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path / "runs")


@pytest.fixture
def run(rig: Rig) -> RunDirectory:
    return rig.begin(FIRST)


async def test_an_answer_is_recorded_with_its_dependencies(run: RunDirectory, rig: Rig) -> None:
    answer = await rig.ask("query_nodes", "role=web", "ipaddress", run=FIRST)
    assert answer == {"ok": True, "answer": ["10.0.0.1", "10.0.0.2"], "warnings": []}
    (query,) = read_queries(run)
    assert query.text == 'query_nodes("role=web", "ipaddress")'
    assert query.names == ("web01.example.com", "web02.example.com")
    assert (query.revision, query.age, query.reason) == (7, 2.0, "")
    assert query.digest is not None
    assert json.loads(run.queries.read_text())["schema"] == 1
    assert run.queries.stat().st_mode & 0o777 == 0o600


async def test_a_repeated_query_is_recorded_once_with_its_newest_answer(rig: Rig) -> None:
    run = rig.begin(FIRST)
    await rig.ask("query_nodes", "role=web", run=FIRST)
    await rig.ask("query_nodes", "role=lb", run=FIRST)
    rig.inventory.replace(WEB1)
    await rig.ask("query_nodes", "role=web", run=FIRST)
    recorded = [(one.arguments, len(one.names)) for one in read_queries(run)]
    assert recorded == [(("role=lb",), 1), (("role=web",), 1)]


@pytest.mark.parametrize("problem", ["away", "stale", "never", "broken"])
async def test_could_not_ask_is_an_error_also_with_a_fallback(rig: Rig, problem: str) -> None:
    run = rig.begin(FIRST)
    await rig.ask("server_with_role", "web", {"hostname": "localhost"}, run=FIRST)
    (run.path / ".reserve").unlink()
    later = rig.begin(SECOND)
    reason = {"away": "is gone", "stale": "last current", "never": "not read", "broken": "disk"}
    now = rig.clock.now().timestamp()
    if problem == "away":
        rig.away = UnavailableError("is gone", where="bus")
    elif problem == "broken":
        rig.inventory = Broken(FLEET, current=now)
    else:
        rig.inventory.current = now - 901 if problem == "stale" else None
    with pytest.raises(UnavailableError) as caught:
        await rig.ask("server_with_role", "web", {"hostname": "localhost"}, run=SECOND)
    line = str(caught.value)
    assert line.startswith("server_with_role(): could not ask: ")
    assert reason[problem] in line
    assert "was web01.example.com (" in line, "the last answer"
    assert "max_stale" in line
    (query,) = read_queries(later)
    assert query.digest is None
    assert reason[problem] in query.reason


class Broken(MemoryInventory):
    def rows(self, own: object = None, *, exports: bool = False) -> Any:
        raise StateError("the disk is gone")


async def test_a_refused_query_is_not_recorded(run: RunDirectory, rig: Rig) -> None:
    with pytest.raises(InvalidInputError, match=r"\(0; must be >= 1\)"):
        await rig.ask("servers_with_role", run=FIRST)
    with pytest.raises(InvalidInputError, match="type Package are not supported"):
        await rig.ask("query_nodes", "Package[x]", run=FIRST)
    with pytest.raises(InvalidInputError, match="'rm' is unknown"):
        await rig.ask("rm", run=FIRST)
    assert read_queries(run) == []


async def test_queries_without_a_run_are_not_recorded(run: RunDirectory, rig: Rig) -> None:
    (run.path / ".reserve").unlink()
    assert (await rig.ask("query_nodes", "lb"))["answer"] == [str(LB.node)]
    assert (await rig.ask("query_nodes", "lb", run=FIRST))["answer"] == [str(LB.node)]
    assert not run.queries.exists(), "that run is over"
    with pytest.raises(InvalidInputError):
        await rig.ask("query_nodes", "lb", run="../../etc")


async def test_an_answer_that_cannot_be_written_down_is_not_given(rig: Rig) -> None:
    rig.begin(FIRST).queries.mkdir()
    with pytest.raises(StateError):
        await rig.ask("query_nodes", "lb", run=FIRST)


def test_the_number_of_different_queries_of_a_run_is_limited(run: RunDirectory, rig: Rig) -> None:

    def query(number: int) -> RecordedQuery:
        return RecordedQuery(function="query_nodes", arguments=(number,), text="q", at="t")

    run.queries.write_text(
        json.dumps({"schema": 1, "queries": [query(n).to_dict() for n in range(MAX_QUERIES)]})
    )
    note_query(run, query(0))
    with pytest.raises(InvalidInputError, match="more than 256 different queries"):
        note_query(run, query(MAX_QUERIES))


def test_the_number_of_recorded_parts_is_limited(run: RunDirectory, rig: Rig) -> None:
    half = {f"n{number}.example.com": {"": "1f3a"} for number in range(MAX_PARTS // 2)}
    for number in range(3):
        query = RecordedQuery(
            function="query_nodes", arguments=(number,), text="q", at="t", parts=half
        )
        note_query(run, replace(query, names=tuple(half)))
    assert [len(one.parts) for one in read_queries(run)] == [len(half), len(half), 0]
    assert {one.names for one in read_queries(run)} == {tuple(half)}


def test_a_damaged_record_is_an_error_that_names_the_file(run: RunDirectory, rig: Rig) -> None:
    run.queries.write_text('{"schema": 1, "queries": [{"text": "x"}]}')
    with pytest.raises(StateError, match=r"queries\.json: is damaged"):
        read_queries(run)
