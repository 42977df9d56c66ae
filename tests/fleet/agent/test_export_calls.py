"""The verbs `export` and `collect`: refusals while a catalog compiles, and records of answers."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError, StateError, UnavailableError
from localpuppet.base.formats.names import RunId
from localpuppet.fleet.agent.code_calls import CollectCall, ExportCalls
from localpuppet.fleet.bus.bus_limits import MAX_EXPORTED_RESOURCES
from localpuppet.fleet.exports.held import HeldExports
from localpuppet.fleet.exports.recording import LEFT, CollectorService, read_collected, read_exports
from localpuppet.fleet.inventory.reading import InventoryReader
from localpuppet.node.runs.run_records import Records, RunDirectory
from tests.doubles.inventory import MemoryInventory
from tests.doubles.ports import FakeClock, FakeProcesses
from tests.fleet.make import resource

RUN = "20261120T140000.000000Z-00aa"
A, B = "a.example.com", "b.example.com"


class Rig:
    def __init__(self, directory: Path) -> None:
        self.clock = FakeClock()
        self.held = HeldExports(directory / "held.sqlite")
        self.policy = directory / "collect.policy"
        self.age = 0.0
        self.records = Records(directory / "runs", FakeProcesses())
        self.run = RunDirectory(self.records.directory / RUN)
        self.run.path.mkdir(parents=True)
        (self.run.path / ".reserve").touch()
        self.calls = ExportCalls(
            self.lend,
            CollectorService(self.held, me="me.example.com", policy=self.policy),
            max_stale=60,
            records=self.records,
            clock=self.clock,
        )

    @asynccontextmanager
    async def lend(self, _: RunId | None) -> AsyncGenerator[InventoryReader, None]:
        yield MemoryInventory([], current=self.clock.now().timestamp() - self.age)

    async def collect(self, kind: str, condition: Any = None, **more: Any) -> dict[str, Any]:
        call = CollectCall.read({"type": kind, "filter": condition, **more})
        return await self.calls.collect(call, str(self.run.id))

    def leave(self, *listed: Any) -> None:
        self.run.public.mkdir(exist_ok=True)
        (self.run.public / LEFT).write_text(json.dumps({"schema": 1, "resources": listed}))


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def left(title: str, **more: Any) -> dict[str, Any]:
    raw = {key: value for key, value in resource("Host", title).to_dict().items() if key != "since"}
    return {**raw, **more}


async def test_exports_of_the_catalog_are_recorded(rig: Rig) -> None:
    rig.leave(left("x"), left("y", parameters={"ip": "10.0.0.1"}))
    assert await rig.calls.export(str(rig.run.id)) == {"ok": True, "count": 2}
    first, second = read_exports(rig.run)
    assert (first.ref, dict(second.parameters)) == ("Host[x]", {"ip": "10.0.0.1"})


@pytest.mark.parametrize(
    ("listed", "reason"),
    [
        ([left("x"), left("x")], r"Host\[x\]: is a duplicate"),
        ([left("x" * 2000)], "title is too long"),
        ([left("x", parameters={"a": "x" * 300_000})], r"Host\[x\]: is too large"),
        ([{}] * (MAX_EXPORTED_RESOURCES + 1), "elements"),
    ],
)
async def test_resources_that_no_node_would_collect_are_refused_at_once(
    rig: Rig, listed: list[Any], reason: str
) -> None:
    rig.leave(*listed)
    with pytest.raises(InvalidInputError, match=reason):
        await rig.calls.export(str(rig.run.id))
    assert read_exports(rig.run) == ()


async def test_only_a_running_run_can_export(rig: Rig) -> None:
    with pytest.raises(InvalidInputError, match="no such run"):
        await rig.calls.export(None)
    with pytest.raises(InvalidInputError, match="no such run"):
        await rig.calls.export("20201120T140000.000000Z-00aa")
    with pytest.raises(StateError):
        await rig.calls.export(str(rig.run.id))  # it left no exports


async def test_the_record_has_what_a_collector_took_and_left_out(rig: Rig) -> None:
    rig.policy.write_text(f"{A}\tHost\t*\n")
    rig.held.hold(A, "1", [resource("Host", "x", "web", ip="10.0.0.1", target="/etc/x")])
    rig.held.hold(B, "1", [resource("Host", "y", "web")])
    rig.held.refuse(B, "2", "rubbish", tried=True)
    answer = await rig.collect("host", ["tag", "==", "web"])
    place = {"file": "/etc/puppet/modules/app/init.pp", "line": 3}
    taken = {"node": A, "how": "guarded", "title": "x", "parameters": {"ip": "10.0.0.1"}, **place}
    assert answer["resources"] == [taken]
    expected = [f"Host[y] of {B} is left out", f"ignoring exports of {B} since its last run"]
    assert [text.partition(":")[0] for text in answer["warnings"]] == expected
    await rig.collect("Host", ["tag", "==", "web"])  # asked again
    await rig.collect("Server")
    host, server = read_collected(rig.run)
    assert (host.text, host.nodes) == ("Host <<| tag == 'web' |>>", (A,))
    assert host.resources[0].dropped == ("target",)
    assert [one.resource for one in host.left_out] == ["Host[y]"]
    assert (server.text, server.resources, server.reason) == ("Server <<| |>>", (), "")


async def test_the_digest_covers_what_a_collector_took(rig: Rig) -> None:
    rig.policy.write_text(f"{A}\tHost\t*\n")
    digests = []
    for ip in ("10.0.0.1", "10.0.0.1", "10.0.0.2"):
        rig.held.hold(A, ip, [resource("Host", "x", ip=ip, target="/no/matter")])
        await rig.collect("Host")
        digests.append(read_collected(rig.run)[0].digest)
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.parametrize("age", [61.0, -3600.0])
async def test_a_view_that_is_too_old_is_no_empty_answer(rig: Rig, age: float) -> None:
    rig.age = age
    with pytest.raises(UnavailableError, match="could not ask"):
        await rig.collect("Server")
    (asked,) = read_collected(rig.run)
    assert (asked.digest, "could not ask" in asked.reason) == (None, True)


async def test_a_refusing_policy_stops_the_run_and_is_recorded(rig: Rig) -> None:
    rig.held.hold(A, "1", [resource("Host", "x")])
    with pytest.raises(InvalidInputError, match=r"Host <<\| \|>>: Host\[x\]: a\.example\.com exp"):
        await rig.collect("Host")
    assert "no policy line" in read_collected(rig.run)[0].reason
    rig.policy.write_text("rubbish\n")
    with pytest.raises(InvalidInputError, match=r"collect\.policy: line 1"):
        await rig.collect("Server")


async def test_a_damaged_record_is_an_error(rig: Rig) -> None:
    (rig.run.path / "collected.json").write_text('{"schema": 1, "collectors": [{"type": "Host"}]}')
    with pytest.raises(StateError, match=r"collected\.json: is damaged"):
        await rig.collect("Server")
    (rig.run.path / "exports.json").write_text('{"schema": 1, "resources": [{}]}')
    with pytest.raises(StateError, match="is damaged"):
        read_exports(rig.run)
