"""Collect the captures of nodes (right `capture`) in a directory: one private file for each node.

- A file is replaced whole, or not at all. A capture that did not change leaves its file alone.
- A node that does not answer, refuses or sends something invalid leaves its earlier file, and is
  reported. The captures of the other nodes are collected.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from localpuppet.base.errors import InvalidInputError, LocalpuppetError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.packed import unpacked
from localpuppet.base.machine.files import make_private
from localpuppet.fleet.captures.keeping import MAX_PACKED
from localpuppet.fleet.requests.client import RequestClient, invalid_reply, request_chunks
from localpuppet.node.preview.capture import MAX_BYTES, NodeCapture
from localpuppet.node.preview.nodes_directory import write_capture

# Nodes that are asked at once, and captures that are unpacked at once: a packed one has at most
# `keeping.MAX_PACKED` bytes, an unpacked one `node.preview.capture.MAX_BYTES`.
AT_ONCE, UNPACKED = 64, 2


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


async def collect_captures(
    client: RequestClient,
    nodes: Sequence[NodeName],
    directory: Path,
    *,
    patience: float,
    progress: Callable[[NodeName, str], None],
) -> dict[NodeName, str]:
    """Write the capture of each node to `NODE.json`; return the nodes without one, with reasons.

    Args:
        client: Sends the requests.
        nodes: The nodes.
        directory: The directory; it is made if it does not exist.
        patience: Seconds to wait for each reply.
        progress: Called after each node with the reason why it has no capture, or an empty text.

    Raises:
        StateError: The directory cannot be made.
    """
    make_private(directory)
    slots, unpacking = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(UNPACKED)
    problems: dict[NodeName, str] = {}

    async def collect(node: NodeName) -> None:
        problem = ""
        try:
            async with slots:
                packed = await ask_capture(client, node, patience=patience)
                async with unpacking:
                    await asyncio.to_thread(_write, directory, node, packed)
        except LocalpuppetError as error:
            problem = problems[node] = str(error)
        progress(node, problem)

    async with client.together():
        await asyncio.gather(*map(collect, nodes))
    return {node: problems[node] for node in nodes if node in problems}


def _write(directory: Path, node: NodeName, packed: bytes) -> None:
    # Written again in localpuppet's own form: no byte of the file is the node's choice but values.
    write_capture(directory, read_capture(node, packed))
