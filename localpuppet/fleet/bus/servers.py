"""How an engine's servers are reached: a value that the settings make and the engines take whole.

Owns: the rules for a server's URL, for all engines, and the defaults of what a site may say about
servers. A new option of an engine is a field here, a line in the schema of the settings, and its
use in the engine. Refuses to know: files (it names some), connections, and how an engine is spoken
to.
"""

import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.text import one_line, url_without_secrets

ENGINES = ("sqlite", "etcd", "nats")
# Engine → the scheme with TLS, the one without, and the port where a URL names none.
_SCHEMES = {"etcd": ("https", "http", 2379), "nats": ("tls", "nats", 4222)}
_FILES = ("ca", "certificate", "key", "password_file", "credentials")
_PLAIN = ("user", "stream", "replicas", "api")
# A setting, and the one that it is nothing without.
_TOGETHER = (("certificate", "key"), ("key", "certificate"), ("user", "password_file"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A server by its URL.

    Attributes:
        url: As the user wrote it; holds no credentials.
        host: Its name or address.
        port: Its port.
        tls: Whether the URL asks for TLS.
    """

    url: str
    host: str
    port: int
    tls: bool

    @classmethod
    def parse(cls, url: str, *, engine: str) -> "Endpoint":
        """Return the endpoint of `https://HOST[:PORT]` (etcd) or `tls://HOST[:PORT]` (NATS).

        Args:
            url: The URL; `http://` and `nats://` are those without TLS.
            engine: `etcd` or `nats`.

        Raises:
            InvalidInputError: The text is another kind of URL, or holds credentials.
        """
        secure, plain, port = _SCHEMES[engine]
        where = one_line(url_without_secrets(url)).partition("?")[0]
        try:
            parts = urllib.parse.urlsplit(url)
            port = parts.port or port
        except ValueError as error:
            raise InvalidInputError(f"is not a URL: {error}", where=where) from error
        if "@" in parts.netloc:
            raise InvalidInputError(
                "a URL must not hold credentials", where=where, hint="use user and password_file"
            )
        beside = (parts.path.strip("/"), parts.query, parts.fragment)
        if parts.scheme not in (secure, plain) or not parts.hostname or any(beside):
            raise InvalidInputError(
                f"is not a server of {engine}", where=where, hint=f"write {secure}://HOST:{port}"
            )
        # urlsplit passes over some of these, and a library that takes the URL may not.
        if not url.isprintable() or " " in url:
            raise InvalidInputError("holds a blank or a control character", where=where)
        return cls(url=url, host=parts.hostname, port=port, tls=parts.scheme == secure)


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """How an engine's servers are reached.

    Attributes:
        endpoints: At least one server; they are tried in this order.
        ca: PEM file with the authorities that the servers' certificates are held against; the
            system's own for `None`.
        certificate: PEM file with our own certificate.
        key: PEM file with its private key; `None` when the key is in `certificate`.
        user: A login.
        password_file: The file with its password.
        credentials: A NATS credentials file: JWT and nkey, or an nkey's seed alone.
        stream: The NATS stream.
        replicas: How many servers of a NATS cluster keep the stream, if we make it.
        max_bytes: How large a NATS stream that we make may grow.
        api: The prefix of NATS's JetStream API; another one where it is imported from an account.
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
        """Return whether a URL asks for TLS."""
        return any(endpoint.tls for endpoint in self.endpoints)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], *, engine: str, root: Path, where: str) -> "Servers":
        """Return what the settings say of an engine's servers.

        Args:
            raw: The part of the settings; its shape was checked.
            engine: `etcd` or `nats`.
            root: The directory that relative paths are relative to.
            where: The part, for messages.

        Raises:
            InvalidInputError: A URL is refused, or a setting lacks the one that it needs.
        """
        for one, other in _TOGETHER:
            if one in raw and other not in raw:
                raise InvalidInputError(f"{one} needs {other}, too", where=where)
        return cls(
            endpoints=_endpoints(raw["servers"], engine=engine, where=where),
            **{key: root / raw[key] for key in _FILES if key in raw},
            **{key: raw[key] for key in _PLAIN if key in raw},
        )


def _endpoints(urls: Sequence[str], *, engine: str, where: str) -> tuple[Endpoint, ...]:
    found = []
    for index, url in enumerate(urls):
        try:
            found.append(Endpoint.parse(url, engine=engine))
        except InvalidInputError as error:
            raise error.at(f"{where}.servers[{index}]") from error
    return tuple(found)
