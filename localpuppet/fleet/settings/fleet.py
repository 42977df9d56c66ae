"""A site's settings for its bus and its agents.

This module has the keys `bus`, `buses` and `agent` of `localpuppet.yaml` and
`localpuppet-agent.yaml`, their defaults, and the checks for contradictions.
"""

import os
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from localpuppet.base.errors import InvalidInputError, errors_at
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.records import JsonForm, JsonRecord
from localpuppet.base.formats.times import parse_duration
from localpuppet.base.machine.extras import require_extra
from localpuppet.base.machine.files import read_user_file
from localpuppet.base.value import Value
from localpuppet.fleet.bus.key_value import check_key
from localpuppet.fleet.bus.servers import Servers
from localpuppet.fleet.settings.peers import MAX_SOCKET
from localpuppet.node.settings import SYSTEM_ROOT, SettingsFile, read_settings

FILE = "localpuppet-agent.yaml"
KEYS = ("node", "bus", "buses", "agent")
MAX_PASSWORD = 4096


class BusSettings(Value):
    """The bus of a site.

    Attributes:
        named: Whether the site names the engine; otherwise it is SQLite.
        sqlite: The file of the engine `sqlite`.
        servers: Engine → its servers, for the configured engines.
    """

    engine: str
    named: bool
    sqlite: Path
    servers: Mapping[str, Servers]
    timeout: float

    @classmethod
    def of(cls, file: SettingsFile) -> "BusSettings":
        """Return the bus settings of a document."""
        buses, where = file.full["buses"], str(file.path)
        servers = {}
        for name in ("etcd", "nats"):
            if name in file.raw.get("buses", {}):
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
    return None if value is False else parse_duration(str(value), what="time")


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
        run_interval: Seconds between runs without another cause; `None` for no timer.
        react: Whether the agent runs Puppet when an answer to a query of its catalog changes.
        warm: Whether the agent keeps a Puppet that has loaded its library, and forks it for each
            run.
        confirm: Seconds after its run within which a deployed release is to be confirmed; `None`
            for no confirmation.
        confirm_command: The argument vector of the command that decides whether this node is cut
            off.
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
    """The settings that make a node part of a fleet.

    Attributes:
        node: The node's name, if a file sets it.
    """

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
    """Reject a bus in a file for an agent in two processes.

    Args:
        where: What shows that the agent has two processes, for the message.
    """
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


def require_servers(bus: BusSettings, engine: str) -> tuple[Servers, str | None]:
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
