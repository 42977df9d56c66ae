"""The settings of a fleet: bus, agents, inventory, identity, and what a node trusts and accepts.

The modules that a run without a bus loads need some of them, so nothing here imports an engine or
its servers before a bus is named.
"""

import hashlib
import os
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from localpuppet.base.errors import InvalidInputError, errors_at
from localpuppet.base.formats.converter import JsonForm, JsonRecord
from localpuppet.base.formats.names import NodeName, SignerName
from localpuppet.base.formats.times import parse_duration
from localpuppet.base.machine.files import read_user_file
from localpuppet.base.machine.own_program import require_extra
from localpuppet.base.value import Value
from localpuppet.fleet.bus.key_value import check_key
from localpuppet.node.settings import SYSTEM_ROOT, Seconds, SettingsFile, read_settings

if TYPE_CHECKING:
    from localpuppet.fleet.bus.servers import Servers
    from localpuppet.fleet.inventory.facts import FactSelection
    from localpuppet.node.preview.node_capture import WithheldKeys


class InventorySettings(JsonRecord):
    """What a node publishes of itself, and what it accepts from other nodes.

    Attributes:
        catalogs: Whether the node publishes its whole catalog, without Sensitive values.
        refresh: Seconds after which an unchanged entry is published again.
        expire: Seconds after which an entry no longer counts; `None` for never.
    """

    facts: tuple[str, ...] = ()
    hide: tuple[str, ...]
    catalogs: bool
    refresh: Seconds
    max_stale: Seconds
    expire: Seconds | None = None
    policy: Path

    @property
    def selection(self) -> "FactSelection":
        """The facts that leave the node."""
        from localpuppet.fleet.inventory.facts import FactSelection

        return FactSelection(facts=self.facts, hide=self.hide)


def inventory_settings(file: SettingsFile) -> InventorySettings:
    """Return the settings below `inventory:`."""
    settings = file.section(InventorySettings, "inventory")
    if settings.expire is not None and settings.expire <= 2 * settings.refresh:
        raise InvalidInputError(
            "must be more than twice inventory.refresh",
            where=f"{file.path}: inventory.expire",
            hint="raise it: otherwise queries leave out healthy nodes",
        )
    return settings


SYSTEM_SOCKET = Path("/run/localpuppet/agent.sock")
# The maximum number of bytes in the path of a UNIX socket (unix(7)).
MAX_SOCKET = 107


class IdentitySettings(JsonRecord):
    """The name and key with which this node signs, and the CA whose certificates it trusts.

    Without a name, the certificate's counts, or the node's; without a certificate, others have
    pinned the key.
    """

    name: SignerName | None = None
    key: Path
    certificate: Path | None = None
    ca: Path | None = None
    crl: Path | None = None


class CaptureSettings(JsonRecord):
    """What a capture of this node contains: `withhold` and `show` are patterns of names."""

    withhold: tuple[str, ...]
    show: tuple[str, ...]

    @property
    def keys(self) -> "WithheldKeys":
        """The names whose values are withheld."""
        from localpuppet.node.preview.node_capture import DEFAULT_PATTERNS, WithheldKeys

        return WithheldKeys((*DEFAULT_PATTERNS, *self.withhold), self.show)


class PeerSettings(Value):
    """How a node deals with other nodes; `kick_always` kicks also after a run without a change."""

    identity: IdentitySettings
    trusted: Path
    policy: Path
    inventory: InventorySettings
    collect_policy: Path
    capture: CaptureSettings
    socket: Path
    kick_always: bool


def peer_settings(file: SettingsFile) -> PeerSettings:
    """Return how a node deals with other nodes."""
    root, full = file.root, file.full
    settings = PeerSettings(
        identity=_identity(file),
        trusted=root / full["trusted"],
        policy=root / full["policy"],
        inventory=inventory_settings(file),
        collect_policy=root / full["exports"]["policy"],
        capture=file.section(CaptureSettings, "capture"),
        socket=root / full.get("socket", _socket(root, file.state)),
        kick_always=full["kick"] == "always",
    )
    if len(os.fsencode(settings.socket)) > MAX_SOCKET:
        raise InvalidInputError(
            f"the agent's socket {settings.socket} has more than {MAX_SOCKET} bytes",
            where=str(file.path),
            hint="'socket: /run/…' names a shorter one",
        )
    return settings


def _socket(root: Path, state: Path) -> Path:
    """Return the socket of a root's agent: below its state if the name is short enough."""
    if root == SYSTEM_ROOT:
        return SYSTEM_SOCKET
    path = state / "agent.sock"
    if len(os.fsencode(path)) <= MAX_SOCKET:
        return path
    return SYSTEM_SOCKET.parent / f"{hashlib.sha256(os.fsencode(root)).hexdigest()[:16]}.sock"


def _identity(file: SettingsFile) -> IdentitySettings:
    body = file.raw.get("identity", {})
    for key, needed in (("certificate", "key"), ("certificate", "ca"), ("crl", "ca")):
        if key in body and needed not in body:
            raise InvalidInputError(f"{key} needs {needed}, too", where=f"{file.path}: identity")
    return file.section(IdentitySettings, "identity", key=str(file.state / "keys" / "node.pem"))


FILE = "localpuppet-agent.yaml"
KEYS = ("node", "bus", "buses", "agent")
MAX_PASSWORD = 4096


class BusSettings(Value):
    """The bus of a site: SQLite, unless the settings name an engine (`named`)."""

    engine: str
    named: bool
    sqlite: Path
    servers: Mapping[str, "Servers"]
    timeout: float

    @classmethod
    def of(cls, file: SettingsFile) -> "BusSettings":
        buses, where = file.full["buses"], str(file.path)
        servers = {}
        for name in ("etcd", "nats"):
            if name in file.raw.get("buses", {}):
                from localpuppet.fleet.bus.servers import Servers  # asyncio takes 30 ms

                servers[name] = Servers.from_dict(
                    buses[name], engine=name, root=file.root, where=f"{where}: buses.{name}"
                )
        engine = file.full["bus"]
        if engine != "sqlite" and engine not in servers:
            raise InvalidInputError(
                f"bus is {engine}, but buses.{engine} does not say where its servers are",
                where=where,
                hint=f"buses: {{{engine}: {{servers: [...]}}}}",
            )
        if "bus" in file.raw:
            require_engine(engine)
        path = buses["sqlite"].get("path")
        return cls(
            engine=engine,
            named="bus" in file.raw,
            sqlite=file.root / path if path else file.state / "bus" / "bus.sqlite",
            servers=servers,
            timeout=float(buses["timeout"]),
        )


class TwoSides(JsonRecord):
    """The sockets and directories that connect the two sides of a split agent."""

    user: str
    socket: Path
    directory: Path

    @property
    def spool(self) -> Path:
        """Return the directory in which the network side hands over messages."""
        return self.directory / "spool"

    @property
    def relay(self) -> Path:
        """Return the socket at which the network side lends the bus."""
        return self.directory / "bus.sock"


def _timer(value: object) -> float | None:
    return None if value is False else parse_duration(str(value))


def _command(value: str | list[str]) -> tuple[str, ...]:
    if isinstance(value, list):
        return tuple(value)
    try:
        words = tuple(shlex.split(value))
    except ValueError as error:
        raise InvalidInputError(f"is not a command: {error}") from error
    if not words:
        raise InvalidInputError("is empty")
    return words


class AgentSettings(JsonRecord):
    """The agent of this node.

    Attributes:
        react: Whether the agent runs Puppet when an answer to a query of its catalog changes.
        warm: Whether it keeps a Puppet that has loaded its library, and forks it for each run.
        confirm: Seconds after its run within which a deployed release is to be confirmed.
        confirm_command: The command that decides whether this node is cut off.
    """

    run_interval: Annotated[float | None, JsonForm(_timer)]
    run_cmd: Annotated[tuple[str, ...] | None, JsonForm(_command)] = None
    react: bool
    warm: bool
    keyprefix: Annotated[str, check_key]
    confirm: Annotated[float | None, JsonForm(_timer)]
    confirm_command: tuple[str, ...] | None = None
    network: TwoSides


class FleetSettings(Value):
    """The settings that make a node part of a fleet."""

    node: NodeName | None
    bus: BusSettings
    agent: AgentSettings


def fleet_settings_of(file: SettingsFile) -> FleetSettings:
    """Return the settings of bus and agent, from both settings files of the root.

    Raises:
        InvalidInputError: A setting is refused, or both files have the same key.
    """
    root = file.root
    agent = read_settings(root / FILE, schema="agent", documents=file.documents)
    merged: dict[str, Any] = {}
    places: dict[str, Path] = {}
    for path, body in ((file.path, file.raw), (root / FILE, agent)):
        for key, value in body.items():
            if key in KEYS:
                if key in places:
                    raise InvalidInputError(
                        f"{key} is in {places[key]}, too", where=str(path), hint="keep one of them"
                    )
                merged[key] = value
                places[key] = path

    def place(key: str) -> Path:
        return places.get(key, file.path)

    with errors_at(f"{place('node')}: node"):
        node = NodeName.parse(merged["node"]) if "node" in merged else None
    fleet = FleetSettings(
        node=node,
        bus=BusSettings.of(replace(file, raw=merged, path=place("bus"))),
        agent=_agent(replace(file, raw=merged, path=place("agent"))),
    )
    network = f"{place('agent')}: agent.network"
    if "network" in merged.get("agent", {}):
        require_server_bus(fleet.bus, where=network)
        _check_sockets(fleet.agent.network, where=network)
    return fleet


def _agent(file: SettingsFile) -> AgentSettings:
    run = Path("/run") if file.root == SYSTEM_ROOT else file.root / "run"
    sockets = {
        "socket": str(run / "localpuppet" / "run.sock"),
        "directory": str(run / "localpuppet-net"),
    }
    agent = file.raw.get("agent", {})
    network = {**sockets, **agent.get("network", {})}
    raw = {**file.raw, "agent": {**agent, "network": network}}
    return replace(file, raw=raw).section(AgentSettings, "agent")


def _check_sockets(sides: TwoSides, *, where: str) -> None:
    for path in (sides.socket, sides.relay):
        if len(os.fsencode(path)) > MAX_SOCKET:
            raise InvalidInputError(
                f"the socket {path} has more than {MAX_SOCKET} bytes",
                where=where,
                hint="name a shorter one",
            )


def require_server_bus(bus: BusSettings, *, where: str) -> None:
    """Reject a bus in a file for an agent in two processes."""
    if bus.engine == "sqlite":
        raise InvalidInputError(
            "an agent in two processes cannot use a bus in a SQLite file",
            where=where,
            hint="set 'bus' to nats or etcd, or run 'localpuppet agent' as one process "
            "without 'agent.network'",
        )


def require_engine(engine: str) -> None:
    """Check that the libraries of an engine are installed."""
    require_extra("fleet" if engine == "sqlite" else engine, where=f"bus {engine}")


def require_servers(bus: BusSettings, engine: str) -> "tuple[Servers, str | None]":
    """Return the servers of an engine, and the password for them, if there is one.

    Raises:
        InvalidInputError: The engine is not configured, its libraries are not installed, or the
            password is not UTF-8.
    """
    servers = bus.servers.get(engine)
    if servers is None:
        raise InvalidInputError(
            f"the engine {engine} is not configured on this node",
            where="localpuppet.yaml",
            hint=f"buses: {{{engine}: {{servers: [...]}}}}",
        )
    require_engine(engine)
    file = servers.password_file
    if file is None:
        return servers, None
    try:
        return servers, read_user_file(file, limit=MAX_PASSWORD).decode("utf-8").rstrip("\n")
    except UnicodeDecodeError as error:
        raise InvalidInputError("the password is not UTF-8", where=str(file)) from error
