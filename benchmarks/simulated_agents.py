"""A process full of simulated agents, for `triggers.py`: real clients, a connection for each.

An agent of ours is the very `BusSession` of `localpuppet agent` (watches for triggers and requests,
a presence that it keeps up, reconnecting) in front of a listener that only notes the time; what
follows receipt (signature, disk, run) is a node's own work, and a thousand nodes have a thousand
disks. A bare one is a client of `bare_clients.py`.

Reads a JSON object from standard input (`engine`, `url`, `nodes`, `bare`), and then a line for each
round: it answers `expecting`, and when every node has heard something (or after `patience`) a JSON
object of node → monotonic nanoseconds. Ends with its standard input.
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
# Seconds between two agents' starts in one process: all at once is another question (restart).
BETWEEN = 0.03


async def open_store(engine: str, url: str) -> KeyValue:
    """Return a client of ours."""
    if engine != "sqlite":
        servers = Servers(endpoints=(Endpoint.parse(url, engine=engine),))
    if engine == "etcd":
        from localpuppet.fleet.bus.etcd.store import open_etcd

        return await open_etcd(servers, timeout=TIMEOUT)
    if engine == "nats":
        from localpuppet.fleet.bus.nats.store import open_nats

        return await open_nats(servers, timeout=TIMEOUT)
    from localpuppet.fleet.bus.sqlite.store import open_sqlite

    return await open_sqlite(Path(url), timeout=TIMEOUT)


class Receipts:
    """When each node first heard something in this round.

    Args:
        nodes: All of them.
    """

    def __init__(self, nodes: Sequence[str]) -> None:
        self._nodes = nodes
        self._complete = asyncio.Event()
        self.at: dict[str, int] = {}

    def heard(self, node: str) -> None:
        """Note that a node heard something."""
        if node not in self.at:
            self.at[node] = time.monotonic_ns()
            if len(self.at) == len(self._nodes):
                self._complete.set()

    def expect(self) -> None:
        """Begin a round."""
        self.at = {}
        self._complete.clear()

    async def all(self, patience: float) -> dict[str, int]:
        """Return what was noted, when every node has heard something or after `patience`."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._complete.wait(), patience)
        return self.at


class Listener:
    """What `BusSession` needs of an agent.

    Args:
        me: The node.
        receipts: Where receipt is noted.
    """

    def __init__(self, me: NodeName, receipts: Receipts) -> None:
        self.me = me
        self._receipts = receipts
        self._last = b""

    async def hear(self, tokens: Sequence[bytes]) -> None:
        """Note receipt; a new connection finds the last trigger again, which is no news."""
        for token in tokens:
            if token != self._last:
                self._last = token
                self._receipts.heard(self.me)

    async def serve(self, _token: bytes) -> None:
        """Answer nobody."""

    async def describe(self) -> bytes:
        """Return a presence entry of the usual size."""
        return PRESENCE

    def subscribe(self) -> asyncio.Event:
        """Return an event that is never set again: nothing changes here."""
        event = asyncio.Event()
        event.set()
        return event


class Quiet:
    """A log that says nothing."""

    def info(self, text: str, *, kind: LineKind = LineKind.SERVICE) -> None:
        """Say nothing."""

    warning = debug = info


async def ours(spec: dict[str, Any], node: str, receipts: Receipts, delay: float) -> None:
    """Be an agent until cancelled."""
    session = BusSession(
        Listener(NodeName.parse(node), receipts),
        connect=partial(open_store, spec["engine"], spec["url"]),
        log=Quiet(),
        keyprefix=KEYPREFIX,
    )
    await asyncio.sleep(delay)
    await session.run(asyncio.Event())


async def bare(spec: dict[str, Any], node: str, receipts: Receipts, delay: float) -> None:
    """Be a bare client until cancelled."""
    await asyncio.sleep(delay)
    client = await open_bare(spec["engine"], spec["url"])
    try:
        await client.listen(node, receipts.heard)
    finally:
        await client.close()


async def main() -> None:
    """Be all agents of this process."""
    reader = asyncio.StreamReader(limit=2**24)
    await asyncio.get_running_loop().connect_read_pipe(
        partial(asyncio.StreamReaderProtocol, reader), sys.stdin
    )
    spec = json.loads(await reader.readline())
    receipts = Receipts(spec["nodes"])
    kind = bare if spec["bare"] else ours
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
    # An agent has a process of its own. The collector of this one goes through the objects of
    # hundreds each time.
    gc.set_threshold(100_000, 50, 100)
    asyncio.run(main())
