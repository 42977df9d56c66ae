"""Looks SRV records up in DNS, by dnspython (docs/adr/0042-srv-records.md).

Owns: that a name server that did not answer is told apart from one that knows no such record.
"""

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, UnavailableError
from localpuppet.base.formats.names import NodeName
from localpuppet.rollout.plans.service import Record

try:
    import dns.exception
    import dns.rdatatype
    import dns.resolver
    from dns.rdtypes.IN.SRV import SRV
except ModuleNotFoundError as error:
    raise InvalidInputError(
        "looking up SRV records needs dnspython",
        hint="name the server in the URL; or pip install '/opt/localpuppet[srv]',"
        " where that is the clone",
    ) from error

PATIENCE = 5.0  # seconds for all name servers
MOST = 64  # records that are looked at
NOT_OFFERED = "."  # a target that says: there is no such service here


class Dns:
    """The name servers of this machine.

    Args:
        server: One to ask in their place, with its port.
    """

    def __init__(self, server: tuple[str, int] | None = None) -> None:
        self._server = server

    def records(self, name: str) -> list[Record]:
        """Return the records of a service; see `service.Lookup`.

        Raises:
            UnavailableError: No name server answered, or a record is not one that can be used.
        """
        try:
            resolver = dns.resolver.Resolver(configure=self._server is None)
            if self._server is not None:
                resolver.nameservers, resolver.port = [self._server[0]], self._server[1]
            answer = resolver.resolve(name, dns.rdatatype.SRV, lifetime=PATIENCE, search=False)
        except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer):
            return []
        except (dns.exception.DNSException, OSError) as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise UnavailableError(f"cannot be looked up: {reason}", where=name) from error
        return [_record(one, name) for one in list(answer)[:MOST] if str(one.target) != NOT_OFFERED]


def _record(found: SRV, name: str) -> Record:
    target = found.target.to_text(omit_final_dot=True).lower()
    try:
        return Record(
            priority=found.priority,
            weight=found.weight,
            port=found.port,
            target=NodeName.parse(target),
        )
    except LocalpuppetError as error:
        raise UnavailableError(
            f"has a record that is not of a server: {error}", where=name
        ) from error
