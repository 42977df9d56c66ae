"""From the settings to the bus: which engine, connected how, and who we are on it."""

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from localpuppet import bus_config
from localpuppet.cli.identity import Identity
from localpuppet.cli.wiring import Parts
from localpuppet.errors import InvalidInputError, LocalpuppetError
from localpuppet.files import read_json, read_user_file
from localpuppet.model.bus_settings import Servers
from localpuppet.model.names import NodeName

if TYPE_CHECKING:
    from localpuppet.key_value import KeyValue
    from localpuppet.record import Records
    from localpuppet.signing import Signer, Verifier

_Result = TypeVar("_Result")
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
    def settings(self) -> bus_config.Fleet:
        """The settings of bus and agent."""
        return bus_config.load(self.parts.settings, self.parts.documents)

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
            from localpuppet.adapters.sqlite_kv import open_sqlite

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
        from localpuppet.model.names import SignerName
        from localpuppet.model.policy import decide
        from localpuppet.reception import read_policy

        try:
            policy = read_policy(self.parts.settings.policy)
        except LocalpuppetError as error:
            return str(error)
        if policy is None:
            return None
        decision = decide(policy, SignerName(sender).caller, "trigger")
        return None if decision.allowed else decision.reason


def paths_of(records: "Records", run: str | None) -> list[tuple[NodeName, ...]]:
    """Return the paths of the causes of a run of this node; `[()]` where it began a chain.

    Raises:
        InvalidInputError: There is no such run.
        StateError: Its record is damaged.
    """
    if run is None:
        return [()]
    try:
        request = read_json(records.get(run).request)
    except FileNotFoundError as error:
        raise InvalidInputError("its record was never whole", where=f"run {run}") from error
    causes = request.get("causes") or {}
    paths = causes.get("paths") or [[]]
    return [tuple(NodeName.parse(name) for name in path) for path in paths]


def run(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run a verb's work to its end; the first error of a group of tasks is the verb's."""
    try:
        return asyncio.run(work)
    except BaseExceptionGroup as group:
        first: BaseException = group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        raise first from group


async def _open_etcd(servers: Servers, timeout: float, _who: str) -> "KeyValue":
    from localpuppet.adapters.etcd_kv import open_etcd

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
    from localpuppet.adapters.nats_kv import open_nats
    from localpuppet.model.nats_subject import inbox_of

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
