"""A Puppet server that SRV records name (RFC 2782): which ones, in which order, which answers.

    https://_x-puppet._tcp.example.com/puppet/v3/environment/production
    srv:production     the same, of this node's own domain; puppet:8140 where it has no record

Owns: which URLs mean a service, the order of servers, and when the next one is tried. Refuses to
know: how records are looked up, how a URL is fetched.

Invariants: a name server that cannot be asked is not "there is no record"; a server is verified by
the name that its record gives; all tries together take no longer than one would.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit, urlunsplit

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.formats.names import Environment, NodeName
from localpuppet.node.enc.input import Fetch

PUPPET = "_x-puppet._tcp"
OWN = "srv:"
DEFAULT = "puppet:8140"
MOST = 8  # servers that are tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """An SRV record.

    Attributes:
        priority: Lower ones are tried first.
        weight: Its share of the requests among those of its priority.
        port: The port.
        target: The server's name.
    """

    priority: int
    weight: int
    port: int
    target: NodeName


class Lookup(Protocol):
    """Looks records up."""

    def records(self, name: str) -> Sequence[Record]:
        """Return the records of a service; none where there are none.

        Raises:
            UnavailableError: No name server answered.
        """
        ...


def in_order(records: Sequence[Record], draw: Callable[[int], int]) -> list[Record]:
    """Return records in the order in which they are to be tried.

    Args:
        records: The records.
        draw: Returns a number from 0 up to and without the given one, by chance.
    """
    found: list[Record] = []
    left = sorted(records, key=lambda one: (one.priority, one.weight, one.target, one.port))
    while left:
        first = [one for one in left if one.priority == left[0].priority]
        mark = draw(sum(one.weight for one in first) + 1)
        total = 0
        for one in first:
            total += one.weight
            if total >= mark:
                found.append(one)
                left.remove(one)
                break
    return found


def site_url(source: str, node: Callable[[], NodeName]) -> str:
    """Return the URL of a site that a person names as `srv:ENVIRONMENT`; any other as it is.

    Args:
        source: What the person wrote.
        node: Returns the name of this node.

    Raises:
        InvalidInputError: It is not an environment, or this node has no domain.
    """
    if not source.startswith(OWN):
        return source
    environment = Environment.parse(source.removeprefix(OWN), where=OWN)
    _, _, domain = node().partition(".")
    if not domain:
        raise InvalidInputError(
            "this node's name has no domain",
            where=source,
            hint=f"name it: https://{PUPPET}.DOMAIN/puppet/v3/environment/{environment}",
        )
    return f"https://{PUPPET}.{domain}/puppet/v3/environment/{environment}"


class ServiceFetch:
    """Fetches from the servers of a service, and from named ones as ever.

    Args:
        client: Returns what fetches within so many seconds.
        lookup: Looks records up.
        timeout: Seconds for all of it.
        now: Returns seconds, by a clock that is not set back.
        draw: See `in_order`.
        default: The server, `HOST:PORT`, where a service has no records; empty for none.
    """

    def __init__(
        self,
        client: Callable[[float], Fetch],
        *,
        lookup: Lookup,
        timeout: float,
        now: Callable[[], float],
        draw: Callable[[int], int],
        default: str = "",
    ) -> None:
        self._client = client
        self._lookup = lookup
        self._timeout = timeout
        self._now = now
        self._draw = draw
        self._default = default

    def get(self, url: str, *, limit: int) -> bytes:
        """Return the body of a URL; see `node.enc.input.Fetch`.

        Raises:
            InvalidInputError: The URL is refused, or names a service with a port, or the server's
                answer is refused.
            UnavailableError: The service has no servers, none of them can be asked, or no name
                server answered.
        """
        parts = urlsplit(url)
        name = parts.hostname or ""
        if not name.startswith("_"):
            return self._client(self._timeout).get(url, limit=limit)
        if ":" in parts.netloc or "@" in parts.netloc:
            raise InvalidInputError("the records of a service name its port", where=f"site {name}")
        until = self._now() + self._timeout
        servers = [
            f"{one.target}:{one.port}" for one in in_order(self._lookup.records(name), self._draw)
        ]
        servers = servers[:MOST] or ([self._default] if self._default else [])
        problem = "has no SRV records"
        for place, server in enumerate(servers):
            # What one server leaves of the time is for those after it.
            seconds = max(until - self._now(), 1.0) / (len(servers) - place)
            try:
                one = urlunsplit(parts._replace(netloc=server))
                return self._client(seconds).get(one, limit=limit)
            except UnavailableError as error:
                problem = f"none of {len(servers)} servers can be asked; the last: {error}"
        raise UnavailableError(problem, where=name)
