"""Find the servers among a node's exports, for `servers_with_role`."""

from collections.abc import Iterable

from localpuppet.base.errors import InvalidInputError, errors_at
from localpuppet.fleet.exports.policy import SERVER
from localpuppet.fleet.exports.resource import ExportedResource
from localpuppet.fleet.inventory.entry import MAX_SERVERS, ExportedServer, ports_of


def servers_of(resources: Iterable[ExportedResource]) -> tuple[ExportedServer, ...]:
    """Return the servers among resources: those of type `Server`.

    Raises:
        InvalidInputError: There are more than `MAX_SERVERS`, or an address or a port is invalid.
    """
    servers = [_server(resource) for resource in resources if resource.type == SERVER]
    if len(servers) > MAX_SERVERS:
        raise InvalidInputError(
            f"exceed the limit: {len(servers)} of type {SERVER}, the limit is {MAX_SERVERS}",
            where="exports",
        )
    return tuple(servers)


def _server(resource: ExportedResource) -> ExportedServer:
    role, address = (
        resource.parameters.get("role", resource.title),
        resource.parameters.get("ipaddress"),
    )
    if not isinstance(role, str) or not (address is None or isinstance(address, str)):
        raise InvalidInputError("its role and its ipaddress must be strings", where=resource.ref)
    with errors_at(resource.ref):
        ports = ports_of(resource.parameters.get("ports"))
    return ExportedServer(role=role, ipaddress=address or None, ports=ports, since=resource.since)
