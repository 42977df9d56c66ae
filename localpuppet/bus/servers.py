"""How an engine's servers are reached: a value that the settings make and the engines take."""

from dataclasses import dataclass
from pathlib import Path

ENGINES = ("sqlite", "etcd", "nats")


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
