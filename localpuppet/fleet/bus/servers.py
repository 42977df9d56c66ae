"""How to reach an engine's servers, and why TLS to one of them failed.

It has the rules for server URLs of all engines, and the defaults of the settings. A new option of
an engine is a field here, a line in the schema of the settings, and its use in the engine.

With TLS 1.3 a server refuses a client's certificate after the handshake, often by closing the
connection without a word.
"""

import asyncio
import ssl
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from localpuppet.base.errors import InvalidInputError, errors_at
from localpuppet.base.formats.text import one_line, split_url, url_without_secrets
from localpuppet.base.machine.anchors import read_anchor
from localpuppet.base.machine.process_table import SystemClock
from localpuppet.base.value import Value

ENGINES = ("sqlite", "etcd", "nats")
# Engine → the scheme with TLS, the one without, and the default port.
_SCHEMES = {"etcd": ("https", "http", 2379), "nats": ("tls", "nats", 4222)}
_FILES = ("ca", "certificate", "key", "password_file", "credentials")
_PLAIN = ("user", "stream", "replicas", "api")
# A setting, and another one that it requires.
_TOGETHER = (("certificate", "key"), ("key", "certificate"), ("user", "password_file"))


class Endpoint(Value):
    """A server by its URL.

    Attributes:
        url: As the user wrote it; without credentials.
        tls: Whether the URL requires TLS.
    """

    url: str
    host: str
    port: int
    tls: bool

    @classmethod
    def parse(cls, url: str, *, engine: str) -> "Endpoint":
        """Return the endpoint of `https://HOST[:PORT]` (etcd) or `tls://HOST[:PORT]` (NATS).

        Args:
            url: The URL; `http://` and `nats://` mean no TLS.
            engine: `etcd` or `nats`.
        """
        secure, plain, port = _SCHEMES[engine]
        where = one_line(url_without_secrets(url)).partition("?")[0]
        parts = split_url(url, where=where)
        port = parts.port or port
        if "@" in parts.netloc:
            raise InvalidInputError(
                "a URL must not hold credentials", where=where, hint="use user and password_file"
            )
        beside = (parts.path.strip("/"), parts.query, parts.fragment)
        if parts.scheme not in (secure, plain) or not parts.hostname or any(beside):
            raise InvalidInputError(
                f"is not a server of {engine}", where=where, hint=f"write {secure}://HOST:{port}"
            )
        # urlsplit drops some of these characters; a library that takes the URL may not.
        if not url.isprintable() or " " in url:
            raise InvalidInputError("holds a blank or a control character", where=where)
        return cls(url=url, host=parts.hostname, port=port, tls=parts.scheme == secure)


class Servers(Value):
    """How to reach an engine's servers.

    Attributes:
        endpoints: At least one server, in the order of attempts.
        ca: PEM file with the authorities that verify the servers' certificates; `None` for the
            system's.
        certificate: PEM file with the client's certificate.
        key: PEM file with its private key; `None` if the key is in `certificate`.
        credentials: A NATS credentials file: JWT and nkey, or an nkey's seed alone.
        replicas: Number of servers of a NATS cluster that keep a stream made by localpuppet.
        max_bytes: Maximum size of a NATS stream made by localpuppet.
        api: The prefix of NATS's JetStream API; another one if it is imported from an account.
    """

    endpoints: tuple[Endpoint, ...]
    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None
    user: str | None = None
    password_file: Path | None = None
    credentials: Path | None = None
    stream: str = "localpuppet"
    replicas: int = 1
    max_bytes: int = 1024**3
    api: str = "$JS.API"

    @property
    def tls(self) -> bool:
        """Return whether a URL requires TLS."""
        return any(endpoint.tls for endpoint in self.endpoints)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], *, engine: str, root: Path, where: str) -> "Servers":
        """Return the servers in the settings of an engine.

        Args:
            raw: The part of the settings; its shape was checked.
            engine: `etcd` or `nats`.
            root: The base directory of relative paths.

        Raises:
            InvalidInputError: A URL is invalid, or a setting lacks another one that it requires.
        """
        for item, other in _TOGETHER:
            if item in raw and other not in raw:
                raise InvalidInputError(f"{item} needs {other}, too", where=where)
        return cls(
            endpoints=_endpoints(raw["servers"], engine=engine, where=where),
            **{key: root / raw[key] for key in _FILES if key in raw},
            **{key: raw[key] for key in _PLAIN if key in raw},
        )


def _endpoints(urls: Sequence[str], *, engine: str, where: str) -> tuple[Endpoint, ...]:
    endpoints = []
    for index, url in enumerate(urls):
        with errors_at(f"{where}.servers[{index}]"):
            endpoints.append(Endpoint.parse(url, engine=engine))
    return tuple(endpoints)


READ = 64 * 1024


def read_little(transport: asyncio.BaseTransport | None) -> None:
    """Set the read buffer to `READ` bytes, which malloc serves without a system call.

    The kernel maps and unmaps asyncio's buffer of 256 KiB for every message. Under TLS, the
    protocol object has the buffer. A transport without such a buffer is left unchanged.
    """
    for reader in (transport, getattr(transport, "_ssl_protocol", None)):
        if hasattr(reader, "max_size"):
            reader.max_size = READ  # type: ignore[union-attr]


def tls_failure(error: Exception, servers: Servers) -> str | None:
    """Return what failed and the certificate or authority to look at; `None` if not TLS."""
    if isinstance(error, ssl.SSLCertVerificationError):
        trusted = servers.ca or "the system's authorities"
        return one_line(
            f"TLS: the server's certificate is refused: {error.verify_message} (trusted: {trusted})"
        )
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or str(error)).lower().replace("_", " ")
        refused = "alert" in reason and ("certificate" in reason or "unknown ca" in reason)
        about = f"the server refuses {own_certificate(servers)}: " if refused else ""
        return one_line(f"TLS: {about}{reason}")
    return None


def lost_connection(text: str, servers: Servers) -> str:
    """Return the reason of a lost connection, with the certificate that may have caused it."""
    if not servers.tls:
        return text
    return f"{text} (the server may have refused {own_certificate(servers)})"


def own_certificate(servers: Servers) -> str:
    """Return the client's certificate for people: its file, and whether it has expired."""
    if servers.certificate is None:
        return "a client without a certificate"
    problem = certificate_problem(servers.certificate, SystemClock().now())
    return f"the certificate {servers.certificate}{f', which {problem}' if problem else ''}"


def certificate_problem(path: Path, now: datetime) -> str:
    """Return why no server accepts a certificate now, such as `expired on …`; empty if none."""
    from cryptography import x509

    try:
        certificate = x509.load_pem_x509_certificate(read_anchor(path))
    except (InvalidInputError, ValueError):
        return "cannot be read"
    if now > certificate.not_valid_after_utc:
        return f"expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
    if now < certificate.not_valid_before_utc:
        return f"is not valid before {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC"
    return ""
