"""Places for a bus, made for a benchmark and ended with it: for `triggers.py`."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleets import make_server, url_of

from tests.rigs.servers import NEW_NATS, OLD_NATS, Server


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """A place for a bus: a server that runs, or a file."""

    engine: str
    url: str
    server: Server | None

    @property
    def pid(self) -> int | None:
        """The server's process."""
        return self.server.process.pid if self.server and self.server.process else None

    @property
    def settings(self) -> dict[str, Any]:
        """What a node's `localpuppet.yaml` says of it."""
        where = {"path": self.url} if self.server is None else {"servers": [self.url]}
        return {"bus": self.engine, "buses": {self.engine: where}}


@contextmanager
def store(engine: str, parent: Path) -> Iterator[Store]:
    """Yield a new bus, and end its server."""
    with tempfile.TemporaryDirectory(dir=parent) as name:
        if engine == "sqlite":
            yield Store(engine=engine, url=f"{name}/bus/bus.sqlite", server=None)
            return
        program = NEW_NATS if engine == "nats-new" else OLD_NATS
        kind = engine.removesuffix("-new")
        server = make_server(kind, Path(name) / "server", program)
        server.start()
        try:
            yield Store(engine=kind, url=url_of(server), server=server)
        finally:
            server.stop()
