"""Fetch a site from the Puppet servers that SRV records name (RFC 2782).

    https://_x-puppet._tcp.example.com/puppet/v3/environment/production
    srv:production     the same in this node's domain; puppet:8140 if there is no record

- An unreachable name server is an error, and not the answer "no record".
- A server is verified by the name in its record.
- All attempts together take no longer than one request may.
"""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from urllib.parse import urlsplit, urlunsplit

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.formats.names import EnvironmentName, NodeName
from localpuppet.base.value import Value
from localpuppet.node.enc.input import Fetch

PUPPET = "_x-puppet._tcp"
OWN = "srv:"
DEFAULT = "puppet:8140"
MOST = 8  # servers to try


class Record(Value):
    """An SRV record.

    Attributes:
        priority: Lower ones are tried first.
        weight: Its share of the requests among records of the same priority.
    """

    priority: int
    weight: int
    port: int
    target: NodeName


def in_order(records: Sequence[Record], draw: Callable[[int], int]) -> list[Record]:
    """Return records in the order in which to try them.

    Args:
        records: The records.
        draw: Returns a random number from 0 up to but excluding its argument.
    """
    ordered: list[Record] = []
    left = sorted(records, key=lambda item: (item.priority, item.weight, item.target, item.port))
    while left:
        first = [item for item in left if item.priority == left[0].priority]
        mark = draw(sum(item.weight for item in first) + 1)
        total = 0
        for record in first:
            total += record.weight
            if total >= mark:
                ordered.append(record)
                left.remove(record)
                break
    return ordered


def site_url(source: str, node: Callable[[], NodeName]) -> str:
    """Return the URL for `srv:ENVIRONMENT`; other sources unchanged.

    Args:
        source: The source as a person wrote it.
        node: Returns the name of this node.

    Raises:
        InvalidInputError: The environment is not valid, or this node's name has no domain.
    """
    if not source.startswith(OWN):
        return source
    environment = EnvironmentName.parse(source.removeprefix(OWN), where=OWN)
    _, _, domain = node().partition(".")
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

    Attributes:
        look_up: Returns the SRV records of a service; empty if there are none. It raises
            `UnavailableError` if no name server answers.
        timeout: Seconds for all attempts.
        now: Returns monotonic seconds.
        draw: See `in_order`.
        default: The server, `HOST:PORT`, for a service without records; empty for none.
    """

    client: Callable[[float], Fetch]
    _: KW_ONLY
    look_up: Callable[[str], Sequence[Record]]
    timeout: float
    now: Callable[[], float]
    draw: Callable[[int], int]
    default: str = ""

    def get(self, url: str, *, limit: int) -> bytes:
        """Return the body of a URL; see `node.enc.input.Fetch`.

        Raises:
            InvalidInputError: The URL is invalid, names a service with a port, or the response is
                rejected.
            UnavailableError: No name server or no server answered, or the service has no records.
        """
        parts = urlsplit(url)
        name = parts.hostname or ""
        if not name.startswith("_"):
            return self.client(self.timeout).get(url, limit=limit)
        if ":" in parts.netloc or "@" in parts.netloc:
            raise InvalidInputError(
                "must have no port", where=f"site {name}", hint="remove it: SRV records name it"
            )
        until = self.now() + self.timeout
        servers = [
            f"{record.target}:{record.port}" for record in in_order(self.look_up(name), self.draw)
        ]
        servers = servers[:MOST] or ([self.default] if self.default else [])
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
