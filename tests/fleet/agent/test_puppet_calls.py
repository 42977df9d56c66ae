"""Calls of Puppet code, line by line: the answer to any line is a single line of JSON."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.formats.names import NodeName, RunId
from localpuppet.base.machine.ports import ProcessId
from localpuppet.fleet.agent import code_calls
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.edges.kicks import HeldKicks
from localpuppet.fleet.exports.held import HeldExports
from localpuppet.fleet.exports.recording import CollectorService
from localpuppet.fleet.inventory.reading import InventoryReader
from localpuppet.fleet.leases.keeper import Keeper
from localpuppet.fleet.leases.lease import Leases
from localpuppet.fleet.triggers.sending import Outgoing
from localpuppet.node.runs.run_records import Records
from tests.doubles.agent_ports import FakeBook
from tests.doubles.identities import person
from tests.doubles.inventory import MemoryInventory
from tests.doubles.memory_store import FirstStore, MemoryKeyValue, MemoryStore
from tests.doubles.ports import FakeClock, FakeLog, FakeProcesses
from tests.fleet.inventory.query.fleet import FLEET

HERE = ProcessId(pid=7, boot_id="b", started=1)
GONE = ProcessId(pid=8, boot_id="b", started=0)
RUN = "20261120T140000.000000Z-abcd"
TRIGGER: dict[str, Any] = {
    "verb": "trigger",
    "name": "refresh",
    "hosts": ["b.example.com", "c.example.com"],
    "tags": ["web"],
    "ttl": None,
    "keyprefix": "/puppet_trigger/events",
    "keyttl": 180,
    "engine": None,
    "run": None,
}
LEADER: dict[str, Any] = {"verb": "leader", "name": "db", "ttl": 30}
LOCK: dict[str, Any] = {"verb": "lock", "name": "db", "wait": 0, "run": None}
UNLOCK: dict[str, Any] = {"verb": "unlock", "name": "db", "run": None}


class Rig:
    def __init__(self, *, agent: bool = True) -> None:
        self.clock = FakeClock()
        self.store = MemoryStore(now=self.clock.monotonic)
        self.lent: list[str | None] = []
        self.back = 0
        self.runs: dict[str | None, list[tuple[NodeName, ...]]] = {
            None: [()],
            RUN: [(NodeName("c.example.com"),)],
        }
        keeper = Keeper(
            self.leases,
            self.clock,
            FakeLog(),
            book=FakeBook(),
            relies=lambda user: user.process != GONE,
            lost=lambda _: None,
        )
        records = Records(Path("/nowhere"), FakeProcesses())
        inventory = code_calls.InventoryCalls(
            self.view, max_stale=60, records=records, clock=self.clock
        )
        sender = code_calls.Sender(
            store=self.lend,
            signer=person("a.example.com").signer,
            paths=self.paths,
            keyprefix="/puppet_trigger/events",
            clock=self.clock,
        )
        exports = code_calls.ExportCalls(
            self.view,
            CollectorService(
                HeldExports(Path("/nowhere")), me="a.example.com", policy=Path("none")
            ),
            max_stale=60,
            records=records,
            clock=self.clock,
        )
        held = HeldKicks(Path("/nowhere"), records, self.clock)
        self.calls = code_calls.PuppetCalls(
            triggers=code_calls.TriggerCalls(sender, inventory=inventory, held=held),
            inventory=inventory,
            exports=exports,
            keeper=keeper if agent else None,
            records=records,
            name="a.example.com",
        )

    @asynccontextmanager
    async def view(self, _: RunId | None) -> AsyncGenerator[InventoryReader, None]:
        yield MemoryInventory(FLEET, current=self.clock.now().timestamp())

    async def leases(self) -> Leases:
        kv = MemoryKeyValue(self.store)
        return Leases(kv, self.clock, holder="a.example.com", session="1", stores=FirstStore())

    @asynccontextmanager
    async def lend(self, engine: str | None) -> AsyncGenerator[KeyValue, None]:
        if engine == "nats":
            raise UnavailableError("cannot be reached", where="nats")
        self.lent.append(engine)
        yield MemoryKeyValue(self.store)
        self.back += 1

    def paths(self, run: str | None) -> list[tuple[NodeName, ...]]:
        if run not in self.runs:
            raise InvalidInputError("is no run")
        return self.runs[run]

    async def ask(self, question: object, process: ProcessId | None = None) -> dict[str, Any]:
        line = question if isinstance(question, bytes) else json.dumps(question).encode()
        answer = await self.calls.answer(line, process)
        assert answer.endswith(b"\n")
        assert answer.count(b"\n") == 1
        found: dict[str, Any] = json.loads(answer)
        assert found["ok"] or found["error"].isprintable()
        return found


@pytest.fixture
def rig() -> Rig:
    return Rig()


async def test_a_trigger_and_one_along_the_paths_of_a_run(rig: Rig) -> None:
    found = await rig.ask(TRIGGER)
    assert (found["ok"], found["sent"], found["dropped"]) == (True, TRIGGER["hosts"], [])
    assert len(rig.store.kept) == 2
    assert (rig.lent, rig.back) == ([None], 1)
    found = await rig.ask({**TRIGGER, "run": RUN})
    assert found["sent"] == ["b.example.com"]
    assert found["dropped"][0]["node"] == "c.example.com"
    assert found["dropped"][0]["reason"].startswith("the loop ends here")


async def test_the_line_that_the_program_itself_writes(rig: Rig) -> None:
    call = Outgoing(hosts=(NodeName("b.example.com"),), tags=(), ttl=5, keyprefix="/x", keyttl=5)
    assert (await rig.ask(code_calls.trigger_line(call)))["sent"] == ["b.example.com"]
    assert list(rig.store.kept) == ["/x/hosts/b.example.com/a.example.com"]


@pytest.mark.parametrize(
    "call",
    [
        {"hosts": "b.example.com"},
        {"hosts": None},
        {"hosts": [1]},
        {"hosts": ["*"]},
        {"hosts": ["b..example.com"]},
        {"hosts": ["b.example.com"] * 10_001},
        {"tags": ["a b"]},
        {"tags": ["x"] * 101},
        {"tags": "x"},
        {"ttl": 0},
        {"ttl": 3601},
        {"ttl": True},
        {"ttl": 1.5},
        {"ttl": "60"},
        {"keyttl": None},
        {"keyttl": 0},
        {"keyttl": 86401},
        {"keyprefix": None},
        {"keyprefix": "no"},
        {"keyprefix": "/a//b"},
        {"keyprefix": "/a/"},
        {"engine": "zookeeper"},
        {"engine": 5},
        {"engine": "nats"},
        {"run": "../../etc"},
        {"run": 5},
        {"run": "20261120T140000.000000Z-ffff"},
        {"verb": None},
        {"verb": "reboot\x1b[31m"},
        *({**LEADER, "ttl": 0}, {**LEADER, "ttl": None}, {**LEADER, "name": "a/b"},
         {**LEADER, "take": "yes"}, {**LOCK, "wait": -1}, {**LOCK, "wait": 86401},
         {**LOCK, "name": ""}, {**LOCK, "run": "x"}, {**UNLOCK, "name": None}),
        *(b"", b"\n", b"null", b"[]", b"{", b'"x"', b"\xff\xfe", b"[" * 200_000),
        b'{"a":' * 50_000,
        b'{"verb":"trigger","verb":"leader"}',
        b'{"ttl":' + b"9" * 100_000 + b"}",
        b'{"verb":"' + b"x" * code_calls.MAX_LINE + b'"}',
    ],
)  # fmt: skip
async def test_a_bad_call_is_an_error_and_writes_nothing(call: dict[str, Any] | bytes) -> None:
    rig = Rig()
    found = await rig.ask(call if isinstance(call, bytes) or len(call) > 2 else {**TRIGGER, **call})
    assert found["ok"] is False
    assert len(found["error"]) < 300
    assert rig.store.kept == {}


async def test_an_outage_is_an_error_of_the_call(rig: Rig) -> None:
    rig.store.away = True
    for question in (TRIGGER, LEADER, LOCK):
        assert await rig.ask(question) == {"ok": False, "error": "bus memory: cannot be reached"}


async def test_leader_lock_unlock(rig: Rig) -> None:
    assert await rig.ask(LEADER) == {"ok": True, "holder": "a.example.com", "mine": True}
    untaken = await rig.ask({**LEADER, "name": "other", "take": False})
    assert untaken == {"ok": True, "holder": None, "mine": False}
    locked = await rig.ask({**LOCK, "name": "migrate"})
    assert locked["ok"] is True
    assert locked["revision"] > 0
    assert (await rig.ask({**LOCK, "name": "migrate"}))["ok"] is False
    assert await rig.ask({**UNLOCK, "name": "migrate"}) == {"ok": True}


async def test_a_lock_is_only_for_an_active_run_or_process(rig: Rig) -> None:
    refused = await rig.ask(LOCK, GONE)
    assert refused["ok"] is False
    assert "no active run or process uses the lock db" in refused["error"]
    assert rig.store.kept == {}
    assert (await rig.ask(LOCK, HERE))["ok"] is True
    assert await rig.ask(UNLOCK, GONE) == {"ok": True}, "that run never had the lock"
    assert len(rig.store.kept) == 1
    assert await rig.ask(UNLOCK, HERE) == {"ok": True}
    assert rig.store.kept == {}


async def test_releasing_a_lost_lock_is_an_error(rig: Rig) -> None:
    await rig.ask(LOCK)
    rig.store.kept.clear()
    found = await rig.ask(UNLOCK)
    assert found["ok"] is False
    assert "was lost before its lock was released" in found["error"]


@pytest.mark.parametrize("question", [LEADER, LOCK, UNLOCK])
async def test_leases_need_a_running_agent(question: dict[str, Any]) -> None:
    assert (await Rig(agent=False).ask(question))["error"].endswith("(start 'localpuppet agent')")


@pytest.mark.parametrize("agent", [True, False])
async def test_a_query_needs_no_running_agent(agent: bool) -> None:
    question = {"verb": "query", "function": "query_nodes", "arguments": ["role=lb"], "run": None}
    answer = await Rig(agent=agent).ask(question)
    assert answer == {"ok": True, "answer": ["lb01.example.com"], "warnings": []}
    refused = await Rig(agent=agent).ask({**question, "arguments": []})
    assert refused["error"] == "query_nodes(): wrong number of arguments (0; must be 1 to 2)"
    odd = await Rig(agent=agent).ask({**question, "arguments": "role=lb"})
    assert odd["error"] == "call.arguments: must be a list, not a string"
