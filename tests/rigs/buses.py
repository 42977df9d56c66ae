"""The buses for tests of fleets of real agents, and the settings of a root for each."""

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from localpuppet.fleet.bus.etcd_bus import open_etcd
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.bus.layout import STORE
from localpuppet.fleet.bus.nats_bus import open_nats
from localpuppet.fleet.bus.sqlite_bus import open_sqlite
from tests.rigs.engines import age
from tests.rigs.reaching import servers_at
from tests.rigs.servers import NEW_NATS, OLD_NATS, EtcdServer, NatsServer, etcd_cluster
from tests.rigs.waiting import PATIENCE

LOCAL = "127.0.0.1"
# Seconds of each call, only where a test waits for an outage: a busy server may be silent for some.
SHORT = 2.0


class Bus:
    """A store, and the settings that lead agents to it."""

    def __init__(
        self, engine: str, where: Path | None, servers: list[EtcdServer] | list[NatsServer]
    ) -> None:
        self.engine = engine  # its name in settings
        self.where = where
        self.servers: list[EtcdServer | NatsServer] = [*servers]  # those that can be killed
        self.timeout = PATIENCE  # seconds of each call of the nodes that are made from now on

    @property
    def server(self) -> EtcdServer | NatsServer:
        return self.servers[0]

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings for `localpuppet.yaml`."""
        known: dict[str, Any] = {"servers": [server.url for server in self.servers]}
        if self.engine == "sqlite":
            known = {"path": str(self.where)}
        return {"bus": self.engine, "buses": {self.engine: known, "timeout": self.timeout}}

    @asynccontextmanager
    async def open(self, timeout: float = PATIENCE) -> AsyncGenerator[KeyValue, None]:
        """Lend a client to a test, with a timeout in seconds for each call."""
        urls = [server.url for server in self.servers]
        if self.engine == "sqlite":
            assert self.where is not None
            store: KeyValue = await open_sqlite(self.where, timeout=timeout)
        elif self.engine == "etcd":
            store = await open_etcd(servers_at(*urls), timeout=timeout)
        else:
            store = await open_nats(servers_at(*urls), timeout=timeout)
        try:
            yield store
        finally:
            await store.close()


def _running(bus: Bus, host: str) -> Iterator[Bus]:
    for server in bus.servers:
        server.host = host
        server.start(wait=False)
    for server in bus.servers:
        server.wait_healthy()
    yield bus
    for server in bus.servers:
        server.stop()


def sqlite(directory: Path) -> Iterator[Bus]:
    """A file, which gives leases at once."""
    path = directory / "bus" / "bus.sqlite"
    age(path)
    yield Bus("sqlite", path, list[EtcdServer]())


def etcd(directory: Path, *, host: str = LOCAL) -> Iterator[Bus]:
    """One member, which gives leases at once."""
    server = EtcdServer(directory / "etcd")
    for bus in _running(Bus("etcd", None, [server]), host):
        server.ctl("put", STORE, "1")
        yield bus


def etcd_three(directory: Path) -> Iterator[Bus]:
    """Three members."""
    yield from _running(Bus("etcd", None, etcd_cluster(directory, 3)), LOCAL)


def nats(directory: Path, *, host: str = LOCAL, program: Path = NEW_NATS) -> Iterator[Bus]:
    """The current server, unless another is asked for."""
    server = NatsServer(directory / "nats", program=program)
    yield from _running(Bus("nats", None, [server]), host)


SERVED: dict[str, Callable[..., Iterator[Bus]]] = {
    "etcd": etcd,
    "nats-debian": partial(nats, program=OLD_NATS),
    "nats": nats,
}
BUSES: dict[str, Callable[..., Iterator[Bus]]] = {"sqlite": sqlite, **SERVED}
