"""Look up SRV records in DNS with dnspython (docs/adr/0042-srv-records.md).

A name server that does not answer is an error; "no such record" is an empty list.
"""

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, UnavailableError
from localpuppet.base.formats.names import NodeName
from localpuppet.rollout.plans.site_file import Record

try:
    import dns.exception
    import dns.rdatatype
    import dns.resolver
    from dns.rdtypes.IN.SRV import SRV
except ModuleNotFoundError as error:
    raise InvalidInputError(
        "looking up SRV records needs dnspython",
        hint="name the server in the URL; or pip install 'PATH[srv]', where PATH is the clone or"
        " wheel of localpuppet",
    ) from error

PATIENCE = 5.0  # seconds for all name servers
MOST = 64  # records of an answer that are read
NOT_OFFERED = "."  # the target for "this service is not offered" (RFC 2782)


def look_up(name: str, server: tuple[str, int] | None = None) -> list[Record]:
    """Return the SRV records of a service; empty if there are none.

    Args:
        name: The name of the service.
        server: The name server to ask, with its port; `None` for those of this machine.

    Raises:
        UnavailableError: No name server answered, or a record does not name a server.
    """
    try:
        resolver = dns.resolver.Resolver(configure=server is None)
        if server is not None:
            resolver.nameservers, resolver.port = [server[0]], server[1]
        answer = resolver.resolve(name, dns.rdatatype.SRV, lifetime=PATIENCE, search=False)
    except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer):
        return []
    except (dns.exception.DNSException, OSError) as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UnavailableError(f"lookup failed: {reason}", where=name) from error
    return [_record(srv, name) for srv in list(answer)[:MOST] if str(srv.target) != NOT_OFFERED]


def _record(srv: SRV, name: str) -> Record:
    target = srv.target.to_text(omit_final_dot=True).lower()
    try:
        return Record(
            priority=srv.priority,
            weight=srv.weight,
            port=srv.port,
            target=NodeName.parse(target),
        )
    except LocalpuppetError as error:
        raise UnavailableError(f"has an invalid record: {error}", where=name) from error
