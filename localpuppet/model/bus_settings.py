"""What a site says about its bus and its agents.

Owns: the keys `bus`, `buses` and `agent` of `localpuppet.yaml` and `localpuppet-agent.yaml`, their
defaults and what contradicts itself. Refuses to know: files, and how an engine is spoken to.
"""

import hashlib
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localpuppet.errors import InvalidInputError
from localpuppet.model.duration import parse_duration
from localpuppet.model.names import NodeName

ENGINES = ("sqlite", "etcd", "nats")
KEYPREFIX = "/puppet_trigger/events"
TIMEOUT = 5.0
NETWORK_USER = "localpuppet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """How an engine's servers are reached.

    Attributes:
        urls: `https://host:2379` or `http://…` for etcd, `tls://host:4222` or `nats://…` for NATS.
        ca: The CA that signed the servers' certificates; the system's own for `None`.
        certificate: Our own certificate.
        key: Its private key.
        user: A login.
        password_file: The file with its password.
        credentials: A NATS credentials file (JWT and nkey).
        stream: The NATS stream.
        replicas: How many servers of a NATS cluster keep the stream, if we make it.
        api: The prefix of NATS's JetStream API.
    """

    urls: tuple[str, ...]
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    user: str | None = None
    password_file: Path | None = None
    credentials: Path | None = None
    stream: str = "localpuppet"
    replicas: int = 1
    api: str = "$JS.API"


@dataclass(frozen=True, slots=True, kw_only=True)
class BusSettings:
    """The bus of a site.

    Attributes:
        engine: The engine that is meant where none is named.
        sqlite: The file of the engine `sqlite`.
        servers: Engine → its servers, for those that are set up.
        timeout: Seconds for one call.
    """

    engine: str
    sqlite: Path
    servers: Mapping[str, Servers]
    timeout: float

    @classmethod
    def from_dict(
        cls, raw: Mapping[str, Any], *, root: Path, sqlite: Path, where: str
    ) -> "BusSettings":
        """Return the settings.

        Args:
            raw: The whole document; its shape was checked.
            root: What relative paths are relative to.
            sqlite: The file of the engine `sqlite` unless it says otherwise.
            where: The document, for messages.

        Raises:
            InvalidInputError: They contradict themselves.
        """
        buses = raw.get("buses", {})
        servers = {}
        for engine in ("etcd", "nats"):
            if engine in buses:
                servers[engine] = _servers(
                    buses[engine], root, where=f"{where}: buses.{engine}", engine=engine
                )
        engine = raw.get("bus", "sqlite")
        if engine != "sqlite" and engine not in servers:
            raise InvalidInputError(
                f"bus is {engine}, but buses.{engine} does not say where its servers are",
                where=where,
                hint=f"buses: {{{engine}: {{servers: [...]}}}}",
            )
        path = buses.get("sqlite", {}).get("path")
        return cls(
            engine=engine,
            sqlite=root / path if path else sqlite,
            servers=servers,
            timeout=float(buses.get("timeout", TIMEOUT)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TwoSides:
    """Where the two sides of a split agent meet.

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
        """Return the directory in which messages are handed over."""
        return self.directory / "spool"

    @property
    def relay(self) -> Path:
        """Return the socket at which the network side lends the bus."""
        return self.directory / "bus.sock"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """The agent of this node.

    Attributes:
        every: Seconds between runs that nothing else causes; `None` for none.
        run_cmd: What a cause runs instead of our own supervisor.
        keyprefix: Where on the bus triggers are.
        sides: Where its two sides meet, if it is split.
    """

    every: float | None
    run_cmd: tuple[str, ...] | None
    keyprefix: str
    sides: TwoSides

    @classmethod
    def from_dict(
        cls, raw: Mapping[str, Any], *, root: Path, run: Path, where: str
    ) -> "AgentSettings":
        """Return the settings; see `BusSettings.from_dict`.

        Args:
            raw: The whole document; its shape was checked.
            root: What relative paths are relative to.
            run: Where sockets are unless it says otherwise.
            where: The document, for messages.

        Raises:
            InvalidInputError: One of them is refused.
        """
        body = raw.get("agent", {})
        every = body.get("every", "30m")
        network = body.get("network", {})
        sides = TwoSides(
            user=network.get("user", NETWORK_USER),
            socket=root / network.get("socket", run / "localpuppet" / "run.sock"),
            directory=root / network.get("directory", run / "localpuppet-net"),
        )
        try:
            return cls(
                sides=sides,
                every=None if every is False else parse_duration(str(every), what="period"),
                run_cmd=_command(body.get("run_cmd")),
                keyprefix=body.get("keyprefix", KEYPREFIX),
            )
        except InvalidInputError as error:
            raise error.at(f"{where}: agent") from error


def splay(node: NodeName, every: float) -> float:
    """Return at which second of each period a node runs: the same for ever, spread over the fleet.

    Args:
        node: The node.
        every: The period in seconds.
    """
    digest = hashlib.sha256(node.encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64 * every


def _servers(raw: Mapping[str, Any], root: Path, *, where: str, engine: str) -> Servers:
    schemes = {"etcd": ("https://", "http://"), "nats": ("tls://", "nats://")}[engine]
    for index, url in enumerate(raw["servers"]):
        if not url.startswith(schemes):
            raise InvalidInputError(
                f"{url!r} does not start with {' or '.join(schemes)}",
                where=f"{where}.servers[{index}]",
            )
        if "@" in url:
            raise InvalidInputError(
                "holds a password or user", where=f"{where}.servers[{index}]", hint="password_file"
            )
    for one, other in (("certificate", "key"), ("key", "certificate"), ("user", "password_file")):
        if one in raw and other not in raw:
            raise InvalidInputError(f"{one} needs {other}, too", where=where)
    files = ("ca", "certificate", "key", "password_file", "credentials")
    return Servers(
        urls=tuple(raw["servers"]),
        user=raw.get("user"),
        stream=raw.get("stream", "localpuppet"),
        replicas=raw.get("replicas", 1),
        api=raw.get("api", "$JS.API"),
        **{key: root / raw[key] for key in files if key in raw},
    )


def _command(value: str | list[str] | None) -> tuple[str, ...] | None:
    if value is None:
        return None
    if isinstance(value, list):
        return tuple(value)
    try:
        words = tuple(shlex.split(value))
    except ValueError as error:
        raise InvalidInputError(f"run_cmd is no command: {error}", where="") from error
    if not words:
        raise InvalidInputError("run_cmd is empty")
    return words
