"""Ask a node for the catalog of its last good run: the right `catalog`."""

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.catalogs.document import MAX_PACKED, CatalogHeader, NodeCatalog
from localpuppet.fleet.records import from_record
from localpuppet.fleet.requests.chunked import invalid_reply, request_chunks
from localpuppet.fleet.requests.client import RequestClient


async def ask_catalog(client: RequestClient, node: NodeName, *, patience: float) -> NodeCatalog:
    """Return the catalog of a node.

    Args:
        client: Sends the requests.
        node: The node.
        patience: Seconds to wait for each reply.

    Raises:
        UnavailableError: The node is unresponsive, refuses, or sent something invalid.
    """
    reply = await request_chunks(client, node, "catalog", most=MAX_PACKED, patience=patience)
    try:
        header = from_record(CatalogHeader, reply.header)
    except InvalidInputError as error:
        raise invalid_reply(
            node, "catalog", "sent an unknown answer (update localpuppet there)"
        ) from error
    try:
        return NodeCatalog.checked(node, header, reply.data)
    except InvalidInputError as error:
        raise invalid_reply(node, "catalog", str(error)) from error
