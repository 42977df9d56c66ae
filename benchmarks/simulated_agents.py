"""A process with simulated agents for `triggers.py`: real clients, a connection for each.

An agent of localpuppet is the real `BusSession` of `localpuppet agent` (watches for triggers and
requests, presence, reconnection) in front of a listener that only records the time. The work after
receipt (signature, disk, run) is not simulated, because a thousand nodes have a thousand disks. A
bare agent is a client of `bare_clients.py`.

Reads a JSON object from standard input (`engine`, `url`, `nodes`, `bare`), and then a line for each
round. It answers `expecting`, and when every node has received a message (or after `patience`) a
JSON object of node → monotonic nanoseconds. Ends with its standard input.
"""

import asyncio
import gc
import json
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from bare_clients import open_bare

from localpuppet.base.formats.names import NodeName
from localpuppet.base.machine.ports import LineKind
from localpuppet.fleet.agent.bus_session import BusSession
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.bus.servers import Endpoint, Servers

KEYPREFIX = "/puppet_trigger/events"
TIMEOUT = 5.0
# As large as a signed presence.
PRESENCE = b"p" * 700
# Seconds between two agents' starts in one process: simultaneous starts are the part `restart`.
BETWEEN = 0.03


async def open_store(engine: str, url: str) -> KeyValue:
    """Return a client of localpuppet."""
    if engine != "sqlite":
        servers = Servers(endpoints=(Endpoint.parse(url, engine=engine),))
    if engine == "etcd":
        from localpuppet.fleet.bus.etcd_bus import open_etcd

        return await open_etcd(servers, timeout=TIMEOUT)
    if engine == "nats":
        from localpuppet.fleet.bus.nats_bus import open_nats

        return await open_nats(servers, timeout=TIMEOUT)
    from localpuppet.fleet.bus.sqlite_bus import open_sqlite

    return await open_sqlite(Path(url), timeout=TIMEOUT)


class Receipts:
    """The time of the first message of each node in this round.

    Args:
        nodes: All of them.
    """

    def __init__(self, nodes: Sequence[str]) -> None:
        self._nodes = nodes
        self._complete = asyncio.Event()
        self.at: dict[str, int] = {}

    def heard(self, node: str) -> None:
        """Record a receipt of a node."""
        if node not in self.at:
            self.at[node] = time.monotonic_ns()
            if len(self.at) == len(self._nodes):
                self._complete.set()

    def expect(self) -> None:
        """Start a round."""
        self.at = {}
        self._complete.clear()

    async def all(self, patience: float) -> dict[str, int]:
        """Return the receipts when every node has one, or after `patience`."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._complete.wait(), patience)
        return self.at


class Listener:
    """The part of an agent that `BusSession` needs.

    Args:
        me: The node.
        receipts: The record of receipts.
    """

    def __init__(self, me: NodeName, receipts: Receipts) -> None:
        self.me = me
        self._receipts = receipts
        self._last = b""

    async def hear(self, tokens: Sequence[bytes]) -> None:
        """Record a receipt; a new connection reads the last trigger again, which does not count."""
        for token in tokens:
            if token != self._last:
                self._last = token
                self._receipts.heard(self.me)

    async def serve(self, _token: bytes) -> None:
        """Send no reply."""

    async def describe(self) -> bytes:
        """Return a presence entry of the usual size."""
        return PRESENCE

    async def contended(self) -> None:
        """Do nothing: each simulated node has one agent."""

    def subscribe(self) -> asyncio.Event:
        """Return an event that is never set again, because nothing changes here."""
        event = asyncio.Event()
        event.set()
        return event


class Quiet:
    """A log without output."""

    def info(self, text: str, *, kind: LineKind = LineKind.SERVICE) -> None:
        """Ignore a line."""

    warning = debug = info


async def run_agent(spec: dict[str, Any], node: str, receipts: Receipts, delay: float) -> None:
    """Run an agent until cancelled."""
    session = BusSession(
        Listener(NodeName.parse(node), receipts),
        connect=partial(open_store, spec["engine"], spec["url"]),
        log=Quiet(),
        keyprefix=KEYPREFIX,
    )
    await asyncio.sleep(delay)
    await session.run(asyncio.Event())


async def bare(spec: dict[str, Any], node: str, receipts: Receipts, delay: float) -> None:
    """Run a bare client until cancelled."""
    await asyncio.sleep(delay)
    client = await open_bare(spec["engine"], spec["url"])
    try:
        await client.listen(node, receipts.heard)
    finally:
        await client.close()


async def main() -> None:
    """Run all agents of this process."""
    reader = asyncio.StreamReader(limit=2**24)
    await asyncio.get_running_loop().connect_read_pipe(
        partial(asyncio.StreamReaderProtocol, reader), sys.stdin
    )
    spec = json.loads(await reader.readline())
    receipts = Receipts(spec["nodes"])
    kind = bare if spec["bare"] else run_agent
    agents = [
        asyncio.create_task(kind(spec, node, receipts, number * BETWEEN))
        for number, node in enumerate(spec["nodes"])
    ]
    try:
        while line := await reader.readline():
            receipts.expect()
            print("expecting", flush=True)
            print(json.dumps(await receipts.all(float(line))), flush=True)
            if failed := [agent for agent in agents if agent.done()]:
                raise SystemExit(f"an agent has ended: {failed[0]}")
    finally:
        for agent in agents:
            agent.cancel()
        await asyncio.wait(agents, timeout=TIMEOUT)


if __name__ == "__main__":
    # A real agent has a separate process. The garbage collector of this one scans the objects of
    # hundreds of agents.
    gc.set_threshold(100_000, 50, 100)
    asyncio.run(main())
