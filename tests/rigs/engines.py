"""The engines that the contract is tested over: how to open each, and to break its server."""

import asyncio
import os
import shutil
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path

from localpuppet.base.machine.unix_socket import listen_to
from localpuppet.fleet.bus.etcd_bus import open_etcd
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.bus.nats_bus import open_nats
from localpuppet.fleet.bus.proxy import ProxyKeyValue, relayed
from localpuppet.fleet.bus.sqlite_bus import open_sqlite
from localpuppet.fleet.bus.sqlite_file import SqliteFile
from tests.doubles.memory_store import MemoryKeyValue, MemoryStore
from tests.rigs.reaching import servers_at
from tests.rigs.servers import NEW_NATS, EtcdServer, NatsServer, Server
from tests.rigs.waiting import PATIENCE


class Engine:
    """One store; every test has its own prefix in it."""

    name = ""
    # Whether a new client with a revision gets the changes since then, not a listing.
    remembers = True

    async def connect(self, timeout: float) -> KeyValue:
        raise NotImplementedError

    @asynccontextmanager
    async def open(self, timeout: float = PATIENCE) -> AsyncGenerator[KeyValue, None]:
        """Return a separate client."""
        store = await self.connect(timeout)
        try:
            yield store
        finally:
            await store.close()

    def lose_data(self) -> None:
        """Replace the store by an empty one."""
        raise NotImplementedError

    def prefix(self) -> str:
        """Return a prefix that no other test uses."""
        return f"/test/{os.urandom(6).hex()}/"


class ServerEngine(Engine):
    """A store with a server that can be killed."""

    server: Server

    def compact(self) -> None:
        """Make the server forget what it can of its history."""
        raise NotImplementedError

    def lose_data(self) -> None:
        self.server.kill()
        shutil.rmtree(self.server.directory / "data")
        self.server.start()


class EtcdEngine(ServerEngine):
    """One member."""

    name = "etcd"

    def __init__(self, directory: Path) -> None:
        self.server: EtcdServer = EtcdServer(directory)

    async def connect(self, timeout: float) -> KeyValue:
        return await open_etcd(servers_at(self.server.url), timeout=timeout)

    def compact(self) -> None:
        self.server.compact()


class NatsEngine(ServerEngine):
    """One server of a given version."""

    remembers = False

    def __init__(self, directory: Path, *, program: Path = NEW_NATS) -> None:
        self.server: NatsServer = NatsServer(directory, program=program)

    async def connect(self, timeout: float) -> KeyValue:
        return await open_nats(servers_at(self.server.url), timeout=timeout)

    def compact(self) -> None:
        """Nothing to do: of each key there is never more than its last message."""


def age(path: Path) -> None:
    """Make the file of a bus, so old that it gives leases at once."""
    SqliteFile(path).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE store SET born = 1")


class SqliteEngine(Engine):
    """A file."""

    name = "sqlite"

    def __init__(self, directory: Path) -> None:
        self.path = directory / "private" / "bus.sqlite"

    async def connect(self, timeout: float) -> KeyValue:
        return await open_sqlite(self.path, timeout=timeout)

    def lose_data(self) -> None:
        for file in self.path.parent.iterdir():
            file.unlink()


class RelayEngine(Engine):
    """The bus as a run side has it: lent by another process, here over SQLite."""

    name = "relay"

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.below = SqliteEngine(directory)

    def lose_data(self) -> None:
        self.below.lose_data()

    async def connect(self, timeout: float) -> KeyValue:
        store = await self.below.connect(timeout)

        @asynccontextmanager
        async def lend(engine: str | None) -> AsyncGenerator[KeyValue, None]:
            assert engine is None
            yield store

        socket = self.directory / f"{os.urandom(6).hex()}.sock"
        server = await listen_to(socket, partial(relayed, lend), users=())
        return _Lent(socket, timeout, server, store)


class _Lent(ProxyKeyValue):
    """Ends the lender, too."""

    def __init__(
        self, socket: Path, timeout: float, server: asyncio.Server, store: KeyValue
    ) -> None:
        super().__init__(socket, timeout=timeout)
        self._server = server
        self._store = store

    async def close(self) -> None:
        await super().close()
        self._server.close()
        await self._store.close()


class MemoryEngine(Engine):
    """The fake that tests use above the port; it passes the contract tests like the others."""

    name = "memory"

    def __init__(self) -> None:
        self.store = MemoryStore()

    async def connect(self, timeout: float) -> KeyValue:
        _ = timeout
        return MemoryKeyValue(self.store)
