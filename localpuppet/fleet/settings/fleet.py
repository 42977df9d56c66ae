"""A site's settings for its bus and its agents.

This module has the keys `bus`, `buses` and `agent` of `localpuppet.yaml` and
`localpuppet-agent.yaml`, their defaults, and the checks for contradictions.
"""

import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from localpuppet.base.errors import InvalidInputError, errors_at
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.times import parse_duration
from localpuppet.base.machine.extras import require_extra
from localpuppet.base.value import Value
from localpuppet.fleet.bus.key_value import check_key
from localpuppet.fleet.bus.layout import KEYPREFIX
from localpuppet.fleet.bus.servers import Servers
from localpuppet.fleet.settings.peers import MAX_SOCKET
from localpuppet.node.settings.node import SYSTEM_ROOT, SettingsFile, read_settings

FILE = "localpuppet-agent.yaml"
KEYS = ("node", "bus", "buses", "agent")
TIMEOUT = 5.0
CONFIRM = "90s"
NETWORK_USER = "localpuppet"


class BusSettings(Value):
    """The bus of a site.

    Attributes:
        engine: The default engine.
        named: Whether the site names the engine; otherwise it is SQLite.
        sqlite: The file of the engine `sqlite`.
        servers: Engine → its servers, for the configured engines.
        timeout: Seconds for each call.
    """

    engine: str
    named: bool
    sqlite: Path
    servers: Mapping[str, Servers]
    timeout: float

    @classmethod
    def from_dict(
        cls, raw: Mapping[str, Any], *, root: Path, sqlite: Path, where: str
    ) -> "BusSettings":
        """Return the bus settings of a document.

        Args:
            raw: The whole document, which matches its schema.
            root: The base of relative paths.
            sqlite: The default file of the engine `sqlite`.
            where: The document, for messages.

        Raises:
            InvalidInputError: The settings contradict each other, or the engine's libraries are
                missing.
        """
        buses = raw.get("buses", {})
        servers = {}
        for engine in ("etcd", "nats"):
            if engine in buses:
                servers[engine] = Servers.from_dict(
                    buses[engine], engine=engine, root=root, where=f"{where}: buses.{engine}"
                )
        engine = raw.get("bus", "sqlite")
        if engine != "sqlite" and engine not in servers:
            raise InvalidInputError(
                f"bus is {engine}, but buses.{engine} does not say where its servers are",
                where=where,
                hint=f"buses: {{{engine}: {{servers: [...]}}}}",
            )
        if "bus" in raw:
            require_engine(engine)
        path = buses.get("sqlite", {}).get("path")
        return cls(
            engine=engine,
            named="bus" in raw,
            sqlite=root / path if path else sqlite,
            servers=servers,
            timeout=float(buses.get("timeout", TIMEOUT)),
        )


class TwoSides(Value):
    """The sockets and directories that connect the two sides of a split agent.

    Attributes:
        user: The network side's user.
        socket: The run side's socket.
        directory: The network side's own directory.
    """

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


class AgentSettings(Value):
    """The agent of this node.

    Attributes:
        run_interval: Seconds between runs without another cause; `None` for no timer.
        run_cmd: The command that a cause runs instead of localpuppet's own supervisor.
        react: Whether the agent runs Puppet when an answer to a query of its catalog changes.
        warm: Whether the agent keeps a Puppet that has loaded its library, and forks it for each
            run.
        keyprefix: The prefix of the bus keys of triggers.
        confirm: Seconds after its run within which a deployed release is to be confirmed; `None`
            for no confirmation.
        confirm_command: The argument vector of the command that decides whether this node is cut
            off.
        sides: How the two sides of a split agent connect.
    """

    run_interval: float | None
    run_cmd: tuple[str, ...] | None
    react: bool
    warm: bool
    keyprefix: str
    confirm: float | None
    confirm_command: tuple[str, ...] | None
    sides: TwoSides

    @classmethod
    def from_dict(
        cls, raw: Mapping[str, Any], *, root: Path, run: Path, where: str
    ) -> "AgentSettings":
        """Return the agent settings of a document; see `BusSettings.from_dict`.

        Args:
            raw: The whole document, which matches its schema.
            root: The base of relative paths.
            run: The default directory of sockets.
            where: The document, for messages.
        """
        body = raw.get("agent", {})
        interval, confirm = body.get("run_interval", "30m"), body.get("confirm", CONFIRM)
        network = body.get("network", {})
        sides = TwoSides(
            user=network.get("user", NETWORK_USER),
            socket=root / network.get("socket", run / "localpuppet" / "run.sock"),
            directory=root / network.get("directory", run / "localpuppet-net"),
        )
        with errors_at(f"{where}: agent"):
            return cls(
                sides=sides,
                run_interval=None
                if interval is False
                else parse_duration(str(interval), what="run_interval"),
                run_cmd=_command(body.get("run_cmd")),
                react=body.get("react", True),
                warm=body.get("warm", False),
                keyprefix=body.get("keyprefix", KEYPREFIX),
                confirm=None if confirm is False else parse_duration(confirm, what="confirm"),
                confirm_command=_command(body.get("confirm_command")),
            )


def _command(value: str | list[str] | None) -> tuple[str, ...] | None:
    if value is None:
        return None
    if isinstance(value, list):
        return tuple(value)
    try:
        words = tuple(shlex.split(value))
    except ValueError as error:
        raise InvalidInputError(f"run_cmd is not a command: {error}", where="") from error
    if not words:
        raise InvalidInputError("run_cmd is empty")
    return words


class FleetSettings(Value):
    """The settings that make a node part of a fleet.

    Attributes:
        node: The node's name, if a file sets it.
        bus: The bus.
        agent: The node's agent.
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

    def place(key: str) -> str:
        return str(places.get(key, file.path))

    with errors_at(f"{place('node')}: node"):
        node = NodeName.parse(merged["node"]) if "node" in merged else None
    fleet = FleetSettings(
        node=node,
        bus=BusSettings.from_dict(
            merged, root=root, sqlite=file.state / "bus" / "bus.sqlite", where=place("bus")
        ),
        agent=AgentSettings.from_dict(
            merged,
            root=root,
            run=Path("/run") if root == SYSTEM_ROOT else root / "run",
            where=place("agent"),
        ),
    )
    network = f"{place('agent')}: agent.network"
    if "network" in merged.get("agent", {}):
        require_server_bus(fleet.bus, where=network)
        _check_sockets(fleet.agent.sides, where=network)
    with errors_at(f"{place('agent')}: agent.keyprefix"):
        check_key(fleet.agent.keyprefix)
    return fleet


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
        bus: The bus of the site.
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
