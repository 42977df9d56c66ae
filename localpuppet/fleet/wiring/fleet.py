"""From settings to the bus: its engine, its connection, and this node's identity on it."""

import os
import uuid
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.text import one_line
from localpuppet.base.machine.files import read_user_file
from localpuppet.fleet.wiring.identity import Identity
from localpuppet.fleet.wiring.settings import fleet_settings, node_name
from localpuppet.node.wiring.node import NodeWiring
from localpuppet.node.wiring.state import open_records

if TYPE_CHECKING:
    from localpuppet.base.machine.guarded_command import GuardedProcess
    from localpuppet.fleet.bus.key_value import KeyValue
    from localpuppet.fleet.requests.client import RequestClient
    from localpuppet.fleet.triggers.held_kicks import HeldKicks
    from localpuppet.fleet.triggers.sending import Outgoing, SendResult
    from localpuppet.fleet.trust.signing import MessageSigner, Verifier


MAX_PASSWORD = 4096
MAX_MACHINE = 253  # characters


class FleetWiring:
    """The parts of a fleet node: the bus, and the node's identity on it.

    Args:
        node: The parts of the node.
        name: The node's name, if it is known already.
    """

    def __init__(self, node: NodeWiring, *, name: NodeName | None = None) -> None:
        self.node = node
        self._name = name
        self.identity = Identity(node, known_name=name)

    @cached_property
    def name(self) -> NodeName:
        """This node's name."""
        return self._name or node_name(self.node)

    @cached_property
    def signer(self) -> "MessageSigner":
        """Signs as this node, or as the person who owns the root."""
        return self.identity.signer()

    @cached_property
    def verifier(self) -> "Verifier":
        """Verifies signatures of trusted signers."""
        return self.identity.verifier()

    async def connect(self, engine: str | None = None) -> "KeyValue":
        """Return the store, connected.

        Args:
            engine: `sqlite`, `etcd`, `nats`; `None` means the site's engine.

        Raises:
            UnavailableError: The bus cannot be reached.
            InvalidInputError: The engine is not configured, or its library is not installed.
        """
        from localpuppet.fleet.settings.fleet import require_engine

        bus = fleet_settings(self.node).bus
        name = engine or bus.engine
        if name == "sqlite":
            from localpuppet.fleet.bus.sqlite.store import open_sqlite

            return await open_sqlite(bus.sqlite, timeout=bus.timeout)
        servers = bus.servers.get(name)
        if servers is None:
            raise InvalidInputError(
                f"the engine {name} is not configured on this node",
                where="localpuppet.yaml",
                hint=f"buses: {{{name}: {{servers: [...]}}}}",
            )
        require_engine(name)
        password = _password(servers.password_file)
        if name == "etcd":
            from localpuppet.fleet.bus.etcd.store import open_etcd

            return await open_etcd(servers, timeout=bus.timeout, password=password)
        from localpuppet.fleet.bus.nats.store import open_nats
        from localpuppet.fleet.bus.nats.subjects import inbox_of

        inbox = inbox_of(self.identity.name())
        return await open_nats(servers, timeout=bus.timeout, password=password, inbox=inbox)

    @asynccontextmanager
    async def connected(self, engine: str | None = None) -> AsyncGenerator["KeyValue", None]:
        """Lend the store, connected; see `connect`."""
        kv = await self.connect(engine)
        try:
            yield kv
        finally:
            await kv.close()

    def requests(self, kv: "KeyValue") -> "RequestClient":
        """Return the client that sends requests to other nodes over a connected store."""
        from localpuppet.fleet.requests.client import RequestClient

        return RequestClient(kv, signer=self.signer, verifier=self.verifier, clock=self.node.clock)

    async def send(self, call: "Outgoing", kv: "KeyValue", *, run: str | None) -> "SendResult":
        """Send triggers in this node's name; see `triggers.sending.send`.

        Args:
            call: The recipients and the trigger.
            kv: The store, connected.
            run: The run that sends them; `None` outside of a run.
        """
        from localpuppet.fleet.triggers import sending

        return await sending.send(
            call,
            kv=kv,
            signer=self.signer,
            paths=paths_of_run(self.node, run),
            clock=self.node.clock,
            uuid=str(uuid.uuid4()),
        )


def open_held_kicks(node: NodeWiring) -> "HeldKicks":
    """Return the kicks that wait until their run is over."""
    from localpuppet.fleet.triggers.held_kicks import HeldKicks

    return HeldKicks(node.settings.state, open_records(node), node.clock)


def paths_of_run(node: NodeWiring, run: str | None) -> Iterable[tuple[NodeName, ...]]:
    """Return the paths along which a run may send triggers; see `paths_of`."""
    from localpuppet.fleet.triggers.sending import paths_of

    return paths_of(open_records(node), run)


def ask_agent(socket: Path, line: bytes, *, patience: float) -> "AsyncGenerator[bytes, None]":
    """Send a line to the agent on this machine, and yield its reply."""
    from localpuppet.base.machine.unix_socket import ask

    return ask(socket, line, patience=patience)


def guarded(command: Sequence[str], *, own_group: bool) -> "GuardedProcess":
    """Return a command that ends when this process dies or hangs; see `GuardedProcess`."""
    from localpuppet.base.machine.guarded_command import GuardedProcess

    return GuardedProcess(command, own_group=own_group)


def machine_name() -> str:
    """Return this machine's own name, on one line."""
    return one_line(os.uname().nodename)[:MAX_MACHINE] or "a machine without a name"


def _password(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        return read_user_file(file, limit=MAX_PASSWORD).decode("utf-8").rstrip("\n")
    except UnicodeDecodeError as error:
        raise InvalidInputError("the password is not UTF-8", where=str(file)) from error
