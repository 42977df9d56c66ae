"""Ask a node for its capture: the right `capture`."""

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.packed import unpacked
from localpuppet.fleet.captures.keeping import MAX_PACKED
from localpuppet.fleet.requests.chunked import invalid_reply, request_chunks
from localpuppet.fleet.requests.client import RequestClient
from localpuppet.node.preview.capture import MAX_BYTES, NodeCapture


async def ask_capture(client: RequestClient, node: NodeName, *, patience: float) -> bytes:
    """Return the packed capture of a node; `read_capture` reads it.

    Args:
        client: Sends the requests.
        node: The node.
        patience: Seconds to wait for each reply.

    Raises:
        UnavailableError: The node is unresponsive, refuses, or sent something invalid.
    """
    reply = await request_chunks(client, node, "capture", most=MAX_PACKED, patience=patience)
    return reply.data


def read_capture(node: NodeName, packed: bytes) -> NodeCapture:
    """Return the capture that a node sent; raise `UnavailableError` if it is invalid."""
    try:
        return NodeCapture.parse(unpacked(packed, most=MAX_BYTES), node=node, where="JSON")
    except (InvalidInputError, ValueError) as error:
        raise invalid_reply(node, "capture", f"sent an invalid capture: {error}") from error
