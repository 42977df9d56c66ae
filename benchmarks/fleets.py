"""Fleets of simulated agents and their servers, for `triggers.py`.

Owns: worker processes (`simulated_agents.py`), rounds over all of them, the cost of a server. A
round starts when every worker expects it, and ends when every node has received a message. Times
are those of the machine's monotonic clock, which all processes share.
"""

import asyncio
import json
import os
import sys
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from bare_clients import Bare, open_bare
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from simulated_agents import BETWEEN, KEYPREFIX, open_store

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.names import NodeName, SignerName
from localpuppet.base.machine.process_table import SystemClock
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.triggers import sending as bus_sending
from localpuppet.fleet.trust.signing import MessageSigner
from tests.rigs.servers import OLD_NATS, EtcdServer, NatsServer, Server

REPOSITORY = Path(__file__).parent.parent
WORKERS = 4
PATIENCE = 60.0
_TICK = os.sysconf("SC_CLK_TCK")
SENDER = "sender.example.com"


def names(count: int) -> list[NodeName]:
    """Return the names of a number of nodes."""
    return [NodeName.parse(f"node{number:04}.example.com") for number in range(count)]


def make_server(engine: str, directory: Path, program: Path = OLD_NATS) -> Server:
    """Return a server of an engine, not started."""
    if engine == "nats":
        return NatsServer(directory, program=program)
    return EtcdServer(directory)


def url_of(server: Server) -> str:
    """Return the URL of a server."""
    assert isinstance(server, EtcdServer | NatsServer)
    return server.url


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The usage of a process: CPU seconds of all its threads, and resident MiB."""

    cpu: float
    memory: float


def usage(pid: int) -> Usage:
    """Return the usage of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return Usage(
        cpu=(int(fields[11]) + int(fields[12])) / _TICK,
        memory=int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 2**20,
    )


class Fleet:
    """Simulated agents in separate processes, between `async with` and its end.

    Args:
        engine: `etcd`, `nats`, `sqlite`.
        url: Its server, or its file.
        nodes: Their names.
        bare: Whether they are bare clients.
    """

    def __init__(self, engine: str, url: str, nodes: Sequence[str], *, bare: bool) -> None:
        self._spec = {"engine": engine, "url": url, "bare": bare}
        self.nodes = list(nodes)
        self._workers: list[asyncio.subprocess.Process] = []

    async def __aenter__(self) -> "Fleet":
        shares = [self.nodes[start::WORKERS] for start in range(WORKERS)]
        for share in filter(None, shares):
            worker = await asyncio.create_subprocess_exec(
                *("/usr/bin/setpriv", "--pdeathsig", "KILL"),
                *(sys.executable, str(Path(__file__).parent / "simulated_agents.py")),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=2**24,
            )
            self._workers.append(worker)
            self._say(worker, json.dumps({**self._spec, "nodes": share}))
        await asyncio.sleep(BETWEEN * len(self.nodes) / WORKERS)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self._workers:
            if worker.stdin is not None:
                worker.stdin.close()
        for worker in self._workers:
            try:
                await asyncio.wait_for(worker.wait(), PATIENCE)
            except TimeoutError:
                worker.kill()

    async def expect(self, patience: float = PATIENCE) -> None:
        """Start a round."""
        for worker in self._workers:
            self._say(worker, str(patience))
        for worker in self._workers:
            assert await self._line(worker) == "expecting"

    async def receipts(self) -> dict[str, float]:
        """End a round, and return the first receipt of each node in monotonic seconds."""
        found: dict[str, float] = {}
        for worker in self._workers:
            for node, at in json.loads(await self._line(worker)).items():
                found[node] = at / 1e9
        return found

    @staticmethod
    def _say(worker: asyncio.subprocess.Process, line: str) -> None:
        assert worker.stdin is not None
        worker.stdin.write(line.encode() + b"\n")

    @staticmethod
    async def _line(worker: asyncio.subprocess.Process) -> str:
        assert worker.stdout is not None
        line = await worker.stdout.readline()
        if not line:
            raise SystemExit("a process of simulated agents has ended")
        return line.decode().rstrip("\n")


class Sender:
    """Sends a trigger to each node of a fleet, as `localpuppet trigger` or a bare client does."""

    def __init__(self, kv: KeyValue | None, bare: Bare | None) -> None:
        self._kv = kv
        self._bare = bare
        self._signer = MessageSigner(SignerName.parse(SENDER), Ed25519PrivateKey.generate())
        self._clock = SystemClock()

    async def send(self, nodes: Sequence[NodeName]) -> None:
        """Send, and return when the server has all messages on its disk."""
        if self._bare is not None:
            await self._bare.send(nodes, b"t" * 700)
            return
        assert self._kv is not None
        call = bus_sending.Outgoing(
            hosts=tuple(nodes), tags=(), ttl=180, keyprefix=KEYPREFIX, keyttl=180
        )
        await bus_sending.send(
            call,
            kv=self._kv,
            signer=self._signer,
            paths=[()],
            clock=self._clock,
            uuid=str(uuid.uuid4()),
        )

    async def send_if_it_can(self, nodes: Sequence[NodeName]) -> None:
        """Send; an unreachable server is not an error."""
        try:
            await self.send(nodes)
        except* UnavailableError:
            pass  # the server restarts


@asynccontextmanager
async def sender(engine: str, url: str, *, bare: bool) -> AsyncGenerator[Sender, None]:
    """Yield a sender."""
    if bare:
        client = await open_bare(engine, url)
        try:
            await client.prepare()
            yield Sender(None, client)
        finally:
            await client.close()
        return
    kv = await open_store(engine, url)
    try:
        yield Sender(kv, None)
    finally:
        await kv.close()


async def until_heard(fleet: Fleet, sending: Sender, every: float) -> dict[str, float]:
    """Send to all nodes repeatedly until each has received a message, and return the times.

    Args:
        fleet: A fleet that expects the round.
        sending: The sender.
        every: Seconds between two attempts.
    """
    nodes = [NodeName.parse(node) for node in fleet.nodes]
    answer = asyncio.create_task(fleet.receipts())
    while not answer.done():
        await sending.send_if_it_can(nodes)
        await asyncio.wait([answer], timeout=every)
    found = answer.result()
    if len(found) < len(nodes):
        raise SystemExit(f"only {len(found)} of {len(nodes)} nodes heard anything")
    return found
