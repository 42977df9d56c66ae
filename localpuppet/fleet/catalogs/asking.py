"""Ask a node for the catalog of its last good run: the right `catalog`.

- The reply has one chunk. Further ones are requested until the catalog is complete, and the bytes
  count only if they have the digest of the first reply.
- If a run replaces the catalog meanwhile, asking begins again, at most `TRIES` times.
"""

import base64
import binascii
from collections.abc import Mapping

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.values import Json
from localpuppet.fleet.catalogs.document import MAX_PACKED, CatalogHeader, NodeCatalog
from localpuppet.fleet.inventory.chunks import digest_of
from localpuppet.fleet.records import from_record
from localpuppet.fleet.requests.catalog import MAX_CHUNKS, CatalogArguments
from localpuppet.fleet.requests.client import RequestClient

TRIES = 3


async def ask_catalog(client: RequestClient, node: NodeName, *, patience: float) -> NodeCatalog:
    """Return the catalog of a node.

    Args:
        client: Sends the requests.
        node: The node.
        patience: Seconds to wait for each reply.

    Raises:
        UnavailableError: The node is unresponsive, refuses, or sent something invalid.
    """
    problem = ""
    for _ in range(TRIES):
        header, data = await _ask(client, node, CatalogArguments(), patience=patience)
        for chunk in range(1, MAX_CHUNKS):
            if len(data) >= header.size:
                break
            args = CatalogArguments(chunk=chunk, digest=header.digest)
            try:
                data += (await _ask(client, node, args, patience=patience))[1]
            except UnavailableError as error:
                problem = error.what
                break
        if digest_of(data) == header.digest:
            try:
                return NodeCatalog.checked(node, header, data)
            except InvalidInputError as error:
                raise _unusable(node, str(error)) from error
        problem = problem or "sent bytes without the digest of its catalog"
    raise _unusable(node, problem)


async def _ask(
    client: RequestClient, node: NodeName, args: CatalogArguments, *, patience: float
) -> tuple[CatalogHeader, bytes]:
    answer = await client.ask(node, "catalog", args, patience=patience)
    if answer.reply is None:
        raise _unusable(node, answer.problem)
    if not answer.ok:
        raise _unusable(node, answer.reply.error or "it refuses")
    return _read(node, answer.reply.result)


def _read(node: NodeName, result: Mapping[str, Json]) -> tuple[CatalogHeader, bytes]:
    try:
        header = from_record(CatalogHeader, result.get("catalog"))
        data = base64.b64decode(str(result.get("data")), validate=True)
    except (InvalidInputError, binascii.Error, ValueError) as error:
        raise _unusable(node, "sent an unknown answer (update localpuppet there)") from error
    if not 0 < header.size <= MAX_PACKED or not data:
        raise _unusable(node, f"its catalog has {header.size} bytes; at most {MAX_PACKED} are read")
    return header, data


def _unusable(node: NodeName, problem: str) -> UnavailableError:
    return UnavailableError(one_line(problem), where=f"catalog of {node}")
