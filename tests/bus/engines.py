"""The engines that the contract is tested over: how to open each, and to break its server."""

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from localpuppet.adapters.sqlite_kv import open_sqlite
from localpuppet.key_value import KeyValue

TIMEOUT = 5.0


class Engine:
    """One store; every test has a prefix of its own in it."""

    name = ""
    # Whether a new client that comes with a revision hears the changes since, not a listing.
    remembers = True

    async def connect(self, timeout: float) -> KeyValue:
        raise NotImplementedError

    @asynccontextmanager
    async def open(self, timeout: float = TIMEOUT) -> AsyncGenerator[KeyValue, None]:
        """Return a client of its own."""
        store = await self.connect(timeout)
        try:
            yield store
        finally:
            await store.close()

    def prefix(self) -> str:
        """Return a prefix that no other test uses."""
        return f"/test/{os.urandom(6).hex()}/"


class SqliteEngine(Engine):
    """A file."""

    name = "sqlite"

    def __init__(self, directory: Path) -> None:
        self.path = directory / "private" / "bus.sqlite"

    async def connect(self, timeout: float) -> KeyValue:
        return await open_sqlite(self.path, timeout=timeout)
