"""Find the servers among a node's exports, for `servers_with_role`."""

from collections.abc import Iterable

from localpuppet.base.errors import InvalidInputError, errors_at
from localpuppet.fleet.exports.policy import SERVER
from localpuppet.fleet.exports.resource import ExportedResource
from localpuppet.fleet.inventory.server import MAX_SERVERS, ExportedServer, ports_of


def servers_of(resources: Iterable[ExportedResource]) -> tuple[ExportedServer, ...]:
    """Return the servers among resources: those of type `Server`.

    Raises:
        InvalidInputError: There are more than `MAX_SERVERS`, or an address or a port is invalid.
    """
    found = [_server(one) for one in resources if one.type == SERVER]
    if len(found) > MAX_SERVERS:
        raise InvalidInputError(
            f"exceed the limit: {len(found)} of type {SERVER}, the limit is {MAX_SERVERS}",
            where="exports",
        )
    return tuple(found)


def _server(one: ExportedResource) -> ExportedServer:
    role, address = one.parameters.get("role", one.title), one.parameters.get("ipaddress")
    if not isinstance(role, str) or not (address is None or isinstance(address, str)):
        raise InvalidInputError("its role and its ipaddress must be strings", where=one.ref)
    with errors_at(one.ref):
        ports = ports_of(one.parameters.get("ports"))
    return ExportedServer(role=role, ipaddress=address or None, ports=ports, since=one.since)
