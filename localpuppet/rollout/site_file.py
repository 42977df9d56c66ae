"""Read a site: a site file, or Puppet's environment graph from a file or from Puppet servers.

- A document that starts with `{` is JSON. A server wrote it, so it may be large.
- Any other document is strict YAML of at most 1 MiB.
- Commands of checks run as the user of the controller. They are accepted only from a named YAML
  file, never from a server or a pipe.

    https://_x-puppet._tcp.example.com/puppet/v3/environment/production
    srv:production     the same in this node's domain; puppet:8140 if there is no record

- An unreachable name server is an error, and not the answer "no record".
- A server is verified by the name in its record.
- SRV records are looked up with dnspython (docs/adr/0042-srv-records.md).
- All attempts together take no longer than one request may.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, UnavailableError
from localpuppet.base.formats.documents import Documents
from localpuppet.base.formats.names import EnvironmentName, NodeName
from localpuppet.base.formats.strict_json import parse_object
from localpuppet.base.formats.text import url_without_secrets
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.files import MAX_DOCUMENT, read_user_file
from localpuppet.node.enc.input import Fetch
from localpuppet.rollout.site import MAX_COMPONENTS, EnvironmentSite

MAX_GRAPH = 48 * 1024 * 1024
# The number of values decides about the memory for a document: a graph has one mapping, two lists,
# about nine strings, and brackets in the names of each component.
MOST = {b"{": 2 * MAX_COMPONENTS, b"[": 16 * MAX_COMPONENTS, b'"': 24 * MAX_COMPONENTS}
# The keys of a Puppet server's error response.
SERVER_ERROR = {"message", "issue_kind"}
STANDARD_INPUT = "-"


def read_site(source: str, documents: Documents, fetch: Fetch | None = None) -> EnvironmentSite:
    """Return the site in a file, in standard input (`-`), or at an https URL by `fetch`."""
    where = place(source)
    if source.startswith("https://") and fetch is not None:
        data, trusted = fetch.get(source, limit=MAX_GRAPH), False
        if not _is_json(data):
            raise InvalidInputError(
                "is not JSON (Puppet's environment graph is JSON)",
                where=where,
                hint="https://HOST:8140/puppet/v3/environment/ENVIRONMENT of Puppet 4 or 5",
            )
        raw = _graph(data, where)
    elif "://" in source:
        raise InvalidInputError(
            "is neither a file nor an https URL",
            where=where,
            hint="name a file, '-' for standard input, or https://…",
        )
    else:
        raw, trusted = _document(source, documents, where)
    site = EnvironmentSite.from_dict(raw, where=where)
    if not trusted:
        _refuse_commands(site, where)
    return site


def place(source: str) -> str:
    """Return the name of a source for messages."""
    if "://" in source:
        return url_without_secrets(source)
    return "standard input" if source == STANDARD_INPUT else source


def _refuse_commands(site: EnvironmentSite, where: str) -> None:
    for component in site.components:
        if any(not isinstance(check, str) for check in component.checks):
            raise InvalidInputError(
                f"{component}: its checks have a command, which only a YAML file may have",
                where=where,
                hint="name a site file of your own, or give the command with --check",
            )


def _document(source: str, documents: Documents, where: str) -> tuple[dict[str, Json], bool]:
    """Return the document in a file, and whether it is a YAML file that may have commands.

    The document's bytes are freed when this returns.
    """
    if source != STANDARD_INPUT:
        data = read_user_file(Path(source), limit=MAX_GRAPH)
    elif sys.stdin is None:
        raise InvalidInputError("is closed", where=where)
    else:
        data = sys.stdin.buffer.read(MAX_GRAPH + 1)
    if _is_json(data):
        return _graph(data, where), False
    if len(data) > MAX_DOCUMENT:
        raise InvalidInputError(
            f"is too large: YAML may have {MAX_DOCUMENT} bytes", where=where, hint="write JSON"
        )
    return documents.parse(data, schema="site", where=where), source != STANDARD_INPUT


def _is_json(data: bytes) -> bool:
    return data.lstrip(b" \t\r\n").startswith(b"{")


def _graph(data: bytes, where: str) -> dict[str, Json]:
    if any(data.count(sign) > most for sign, most in MOST.items()):
        raise InvalidInputError(
            f"has too many values: at most {MAX_COMPONENTS} components are allowed",
            where=where,
            hint="plan parts of the site",
        )
    raw = parse_object(data, where=where, limit=MAX_GRAPH)
    if raw.keys() >= SERVER_ERROR:
        raise InvalidInputError(
            "is the error of a Puppet server, not an environment graph",
            where=where,
            hint="read its 'message'; use 'curl --fail' to avoid such files",
        )
    return raw


PUPPET = "_x-puppet._tcp"
OWN = "srv:"
DEFAULT = "puppet:8140"
SERVICE_MOST = 8  # servers to try


def site_url(source: str, node: NodeName) -> str:
    """Return the URL for `srv:ENVIRONMENT`, in the domain of this node."""
    environment = EnvironmentName.parse(source.removeprefix(OWN), where=OWN)
    _, _, domain = node.partition(".")
    if not domain:
        raise InvalidInputError(
            "this node's name has no domain",
            where=source,
            hint=f"name it: https://{PUPPET}.DOMAIN/puppet/v3/environment/{environment}",
        )
    return f"https://{PUPPET}.{domain}/puppet/v3/environment/{environment}"


@dataclass(frozen=True, slots=True)
class ServiceFetch:
    """Fetches URLs from the servers of a service; other URLs directly.

    `timeout` is for all attempts. `default` is the server for a service without records.
    """

    client: Callable[[float], Fetch]
    _: KW_ONLY
    look_up: Callable[[str], Sequence[str]]
    timeout: float
    now: Callable[[], float]
    default: str = ""

    def get(self, url: str, *, limit: int) -> bytes:
        """Return the body of a URL; see `node.enc.input.Fetch`."""
        parts = urlsplit(url)
        name = parts.hostname or ""
        if not name.startswith("_"):
            return self.client(self.timeout).get(url, limit=limit)
        if ":" in parts.netloc or "@" in parts.netloc:
            raise InvalidInputError(
                "must have no port", where=f"site {name}", hint="remove it: SRV records name it"
            )
        until = self.now() + self.timeout
        servers = self.look_up(name) or ([self.default] if self.default else [])
        problem = "has no SRV records"
        for place, server in enumerate(servers):
            # The time that one server leaves is divided among the next ones.
            seconds = max(until - self.now(), 1.0) / (len(servers) - place)
            try:
                server_url = urlunsplit(parts._replace(netloc=server))
                return self.client(seconds).get(server_url, limit=limit)
            except UnavailableError as error:
                problem = f"none of {len(servers)} servers answers; the last: {error}"
        raise UnavailableError(problem, where=name)


DNS_PATIENCE = 5.0  # seconds for all name servers
NOT_OFFERED = "."  # the target for "this service is not offered" (RFC 2782)


def look_up(name: str, server: tuple[str, int] | None = None) -> list[str]:
    """Return the servers of a service in the order in which to try them, `HOST:PORT`.

    It asks `server`, by default those of this machine. A name server that does not answer is an
    error; "no such record" is an empty list.
    """
    try:  # takes 100 ms or more
        import dns.exception
        import dns.rdatatype
        import dns.resolver
    except ModuleNotFoundError as error:
        raise InvalidInputError(
            "looking up SRV records needs dnspython",
            hint="name the server in the URL; or pip install 'PATH[srv]', where PATH is the clone"
            " or wheel of localpuppet",
        ) from error
    try:
        resolver = dns.resolver.Resolver(configure=server is None)
        if server is not None:
            resolver.nameservers, resolver.port = [server[0]], server[1]
        answer = resolver.resolve(name, dns.rdatatype.SRV, lifetime=DNS_PATIENCE, search=False)
    except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer):
        return []
    except (dns.exception.DNSException, OSError) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UnavailableError(f"lookup failed: {reason}", where=name) from error
    records: Any = answer.rrset
    # By priority and weight (RFC 2782).
    offered = [srv for srv in records.processing_order() if str(srv.target) != NOT_OFFERED]
    try:
        return [
            f"{NodeName.parse(srv.target.to_text(omit_final_dot=True).lower())}:{srv.port}"
            for srv in offered[:SERVICE_MOST]
        ]
    except LocalpuppetError as error:
        raise UnavailableError(f"has an invalid record: {error}", where=name) from error
