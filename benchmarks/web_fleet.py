"""A fleet for the dashboard of `web.py`: a bus, entries of its nodes, and a database.

Owns: the root of the dashboard's machine, signed presence and entries of all nodes, and the ends of
runs of many days, in the form that the dashboard writes.

Each node has a pinned key. All nodes share one key, because making a thousand takes longer.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from engines import Store

from localpuppet.base.formats.names import NodeName, SignerName
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.bus.layout import INVENTORY
from localpuppet.fleet.bus.nats_bus import open_nats
from localpuppet.fleet.history.history_records import AUDIT, RUNS, HistoryDay, day_of, history_key
from localpuppet.fleet.inventory.presence import announce
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.fleet.trust.key_files import public_pem
from localpuppet.fleet.trust.signing import MessageKind, MessageSigner
from localpuppet.web.dashboard.memory import FILE, DashboardStore
from localpuppet.web.dashboard.run_table import RunRow
from tests.fleet.inventory.entries import entry
from tests.fleet.make import a_decision, a_resource, a_summary
from tests.rigs.node import Node
from tests.rigs.reaching import servers_at
from tests.web.make import names, run_id, status

EVERY = 1800.0
DAY = 86400.0
ROLES = ("web", "db", "cache", "lb", "mail")
FACTS = {f"group{number}": {f"fact{n}": "x" * 40 for n in range(10)} for number in range(10)}
# Ends that are written in one transaction, and writes to the bus at once.
TOGETHER = 10_000
# Runs of a node on the bus.
RUNS_OF_DAY = 24
AT_ONCE = 64
# Resource counts of a run that failed or changed something.
TOUCHED = tuple(a_resource(line) for line in range(5))
# Longer than any benchmark, because no agent renews the entries.
TTL = 6 * 3600.0
TIMEOUT = 30.0


class Told:
    """The published entries of nodes, and their bus.

    Args:
        kv: The bus.
        nodes: Their names.

    Attributes:
        begun: When the newest run of the last node ended.
    """

    def __init__(self, kv: KeyValue, nodes: list[str]) -> None:
        self._kv = kv
        self.nodes = nodes
        self._key = Ed25519PrivateKey.generate()
        self.begun = time.time()

    @property
    def pem(self) -> bytes:
        """Return the key of all nodes."""
        return public_pem(self._key.public_key())

    async def present(
        self, number: int, *, ended: float | None = None, state: str = "idle"
    ) -> None:
        """Publish a node's state; one in ten failed, by one of twenty failure causes.

        Args:
            number: The node's number.
            ended: The end of its last run; `None` for its usual time.
            state: The state.
        """
        node = self.nodes[number]
        fault = {"error": f"Could not find {number % 20}", "resource": "", "place": "init.pp:3"}
        failed = {"outcome": "failed", "category": "no_report", "failure_cause": fault}
        ended = self._turn(number) if ended is None else ended
        last = {} if number % 10 else failed
        more = {"state": state, "release_digest": "ab" * 32}
        said = status(node, ended, last_run=last, **more)
        token = self._signed(node, json.dumps(said).encode(), MessageKind.PRESENCE)
        await announce(self._kv, NodeName.parse(node), token, ttl=TTL)

    async def day(self, number: int, *, ended: float | None = None) -> None:
        """Publish a node's runs of up to half a day, and the requests that it decided.

        Args:
            number: The node's number.
            ended: The end of one more run.
        """
        node, turn = NodeName.parse(self.nodes[number]), self._turn(number)
        times = [turn - EVERY * step for step in range(RUNS_OF_DAY)]
        times = [*times, ended] if ended else times
        today = day_of(max(times))
        # The release stays, so the changes of a run are drift, on one node in fifty.
        some = () if number % 50 else tuple(a_resource(line) for line in range(5))
        runs = tuple(
            a_summary(at, resources=() if int(at / EVERY) % 10 else some)
            for at in sorted(times)
            if day_of(at) == today
        )
        decisions = tuple(a_decision(at) for at in sorted(times)[:2] if day_of(at) == today)
        for form, records in ((RUNS, runs), (AUDIT, decisions)):
            day = HistoryDay(node=node, day=today, records=records, dropped=0)
            token = self._signed(node, day.to_payload(), form.message)
            await self._kv.put(history_key(node, form.kind, today), token)

    async def end_run(self, number: int) -> None:
        """Publish that a run ended just now."""
        ended = time.time()
        await asyncio.gather(self.present(number, ended=ended), self.day(number, ended=ended))

    async def list_(self, number: int) -> None:
        """Publish the inventory entry of a node."""
        node = self.nodes[number]
        said = entry(node, at=time.time(), roles=(ROLES[number % 5],), facts=FACTS)
        token = self._signed(node, said.to_payload(), MessageKind.INVENTORY)
        await self._kv.put(f"{INVENTORY}{node}", token)

    async def all(self) -> None:
        """Publish all entries of every node."""
        for begin in range(0, len(self.nodes), AT_ONCE):
            some = range(begin, min(begin + AT_ONCE, len(self.nodes)))
            told = (self.present, self.list_, self.day)
            await asyncio.gather(*(tell(number) for number in some for tell in told))

    def _turn(self, number: int) -> float:
        """Return when the last run of a node ended: each has its own second of the half hour."""
        return self.begun - EVERY * (1 - number / len(self.nodes))

    def _signed(self, node: str, payload: bytes, kind: MessageKind) -> bytes:
        return MessageSigner(SignerName.parse(node), self._key).sign(payload, kind)


@asynccontextmanager
async def fleet(place: Store, count: int) -> AsyncGenerator[Told, None]:
    """Yield a fleet on a bus of NATS without published entries."""
    kv = await open_nats(servers_at(place.url), timeout=TIMEOUT)
    try:
        yield Told(kv, list(names(count)))
    finally:
        await kv.close()


def root_of(directory: Path, settings: Mapping[str, Any], told: Told) -> Node:
    """Make the root of the dashboard's machine, which trusts all nodes."""
    node = Node(directory)
    directory.mkdir(mode=0o755)
    node.settings(node="page.example.com", **settings)
    trusted = directory / "trusted"
    trusted.mkdir(mode=0o755)
    for name in told.nodes:
        (trusted / f"{name}.pem").write_bytes(told.pem)
    return node


def ends(nodes: list[str], now: float, days: float) -> Iterator[RunRow]:
    """Yield the ends of all runs except the last ones, oldest first.

    One run in twenty failed, and one in twenty changed something.

    Each node has one of five releases, and its own second of the half hour.
    """
    for step in range(int(days * DAY / EVERY), 0, -1):
        for number, node in enumerate(nodes):
            at = now - step * EVERY + EVERY * number / len(nodes)
            kind = (Kind.FAILED, Kind.CHANGED, Kind.UNCHANGED)[min(2, (step + number) % 20)]
            one = RunRow(
                node=node,
                run=run_id(at),
                finished_at=at,
                outcome=kind,
                release=f"{ROLES[number % 5]}/tags/r{step // 300}",
                reason="",
                cause="timer",
                seconds=20,
                resources=() if kind is Kind.UNCHANGED else TOUCHED,
            )
            if kind is Kind.FAILED:
                one = replace(
                    one,
                    reason=f"{number % 7} resources failed",
                    failure_cause=f"{number % 20:016x}",
                )
            yield one


def remember(state: Path, told: Told, days: float) -> tuple[int, float]:
    """Write all ends of runs as the dashboard does; return their number and the seconds."""
    memory = DashboardStore(state / FILE, now=time.time)
    begun = time.perf_counter()
    batch: list[RunRow] = []
    count = 0
    for one in ends(told.nodes, told.begun - EVERY, days):
        batch.append(one)
        if len(batch) == TOGETHER:
            memory.write_history(batch, ())
            count += len(batch)
            batch.clear()
    memory.write_history(batch, ())
    memory.close()
    return count + len(batch), time.perf_counter() - begun
