"""From the settings to the bus: which engine, connected how, and who we are on it."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.bus.servers import Servers
from localpuppet.errors import InvalidInputError, LocalpuppetError
from localpuppet.formats.names import NodeName
from localpuppet.machine.files import read_user_file
from localpuppet.settings import fleet
from localpuppet.wiring.identity import Identity
from localpuppet.wiring.node import Parts

if TYPE_CHECKING:
    from localpuppet.bus.key_value import KeyValue
    from localpuppet.trust.signing import Signer, Verifier


MAX_PASSWORD = 4096


class FleetParts:
    """Builds what the verbs of the bus need.

    Args:
        parts: The wiring of the node.
        node: The node's name, where it is known already.
    """

    def __init__(self, parts: Parts, *, node: NodeName | None = None) -> None:
        self.parts = parts
        self._node = node
        self.identity = Identity(parts)

    @cached_property
    def settings(self) -> fleet.Fleet:
        """The settings of bus and agent."""
        return fleet.load(self.parts.settings, self.parts.documents)

    @cached_property
    def node(self) -> NodeName:
        """This node's name."""
        return self._node or self.parts.node_name()

    @cached_property
    def signer(self) -> "Signer":
        """This node, or the person whose root it is."""
        return self.identity.signer()

    @cached_property
    def verifier(self) -> "Verifier":
        """Tells whose signatures hold."""
        return self.identity.verifier()

    async def connect(self, engine: str | None = None) -> "KeyValue":
        """Return the store, connected.

        Args:
            engine: `sqlite`, `etcd`, `nats`; that of the site for `None`.

        Raises:
            UnavailableError: It cannot be reached.
            InvalidInputError: It is not set up, or its library is not installed.
        """
        found = self.settings.bus
        name = engine or found.engine
        if name == "sqlite":
            from localpuppet.bus.sqlite.store import open_sqlite

            return await open_sqlite(found.sqlite, timeout=found.timeout)
        servers = found.servers.get(name)
        if servers is None:
            raise InvalidInputError(
                f"the engine {name} is not set up on this node",
                where="localpuppet.yaml",
                hint=f"buses: {{{name}: {{servers: [...]}}}}",
            )
        opening = {"etcd": _open_etcd, "nats": _open_nats}[name]
        return await opening(servers, found.timeout, self.identity.name())

    @asynccontextmanager
    async def connected(self, engine: str | None = None) -> AsyncGenerator["KeyValue", None]:
        """Lend the store, connected; see `connect`."""
        kv = await self.connect(engine)
        try:
            yield kv
        finally:
            await kv.close()

    def may(self, sender: NodeName) -> str | None:
        """Return why a sender may not trigger this node; `None` if it may.

        Where there is no policy, whoever has a key that this node trusts may: that is what the key
        was trusted for. Requests are another matter (`reception`): there no policy denies.
        """
        from localpuppet.formats.names import SignerName
        from localpuppet.trust.policy import decide
        from localpuppet.trust.policy_file import read_policy

        try:
            policy = read_policy(self.parts.settings.policy)
        except LocalpuppetError as error:
            return str(error)
        if policy is None:
            return None
        decision = decide(policy, SignerName(sender).caller, "trigger")
        return None if decision.allowed else decision.reason


async def _open_etcd(servers: Servers, timeout: float, _who: str) -> "KeyValue":
    from localpuppet.bus.etcd.store import open_etcd

    return await open_etcd(
        servers.urls,
        timeout=timeout,
        ca=servers.ca,
        certificate=servers.certificate,
        key=servers.key,
        user=servers.user,
        password=_password(servers.password_file),
    )


async def _open_nats(servers: Servers, timeout: float, who: str) -> "KeyValue":
    from localpuppet.bus.nats.store import open_nats
    from localpuppet.bus.nats.subjects import inbox_of

    return await open_nats(
        servers.urls,
        timeout=timeout,
        stream=servers.stream,
        replicas=servers.replicas,
        ca=servers.ca,
        certificate=servers.certificate,
        key=servers.key,
        user=servers.user,
        password=_password(servers.password_file),
        credentials=servers.credentials,
        inbox=inbox_of(who),
        api=servers.api,
    )


def _password(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        return read_user_file(file, limit=MAX_PASSWORD).decode("utf-8").rstrip("\n")
    except UnicodeDecodeError as error:
        raise InvalidInputError("the password is not UTF-8", where=str(file)) from error
