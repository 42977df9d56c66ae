"""Data that is too large for one reply: sent in chunks, and requested until it is complete.

- Each reply has one chunk and a header with `digest` and `size` of the whole. The bytes count only
  if they have the digest of the first reply.
- If a run replaces the data meanwhile, the caller begins again, at most `TRIES` times.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, replace

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.formats.fields import Fields
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.values import Json, mapping_of
from localpuppet.base.value import Value
from localpuppet.fleet.inventory.chunks import cut, digest_of
from localpuppet.fleet.requests.chunk import MAX_CHUNKS, ChunkArguments
from localpuppet.fleet.requests.client import RequestClient

TRIES = 3
# Bytes in one reply: in base64 they fit into `requests.reply.MAX_REPLY`.
REPLY_CHUNK = 192 * 1024


class ChunkedReply(Value):
    """Data of a node, or a part of it.

    Attributes:
        header: The header as the node sent it.
        digest: The digest in it, of the whole data.
        size: The size in it, of the whole data.
        data: The data: complete, or one chunk.
    """

    header: Mapping[str, Json]
    digest: str
    size: int
    data: bytes


def reply_chunk(
    action: str, header: Mapping[str, Json], data: bytes, args: ChunkArguments
) -> dict[str, Json]:
    """Return the result of a request: the header and one chunk in base64.

    Args:
        action: The action, which is the key of the header.
        header: The header, with `digest`.
        data: The whole data.
        args: The arguments of the request.

    Raises:
        InvalidInputError: There is no such chunk, or the data is not what the caller began with.
    """
    if args.digest not in ("", header["digest"]):
        raise InvalidInputError("a run changed it", where=action, hint="ask again")
    chunks = cut(data, REPLY_CHUNK)
    if args.chunk >= len(chunks):
        raise InvalidInputError(f"has {len(chunks)} chunks", where=action)
    return {action: dict(header), "data": base64.b64encode(chunks[args.chunk]).decode("ascii")}


async def request_chunks(
    client: RequestClient, node: NodeName, action: str, *, most: int, patience: float
) -> ChunkedReply:
    """Return the data of a node.

    Args:
        client: Sends the requests.
        node: The node.
        action: `capture` or `catalog`.
        most: The limit of the data, in bytes.
        patience: Seconds to wait for each reply.

    Raises:
        UnavailableError: The node is unresponsive, refuses, or sent something invalid.
    """
    asking = _Asking(client, node, action, most, patience)
    problem = ""
    for _ in range(TRIES):
        first = await asking.ask(ChunkArguments())
        data = first.data
        for chunk in range(1, MAX_CHUNKS):
            if len(data) >= first.size:
                break
            args = ChunkArguments(chunk=chunk, digest=first.digest)
            try:
                data += (await asking.ask(args)).data
            except UnavailableError as error:
                problem = error.what
                break
        if digest_of(data) == first.digest:
            return replace(first, data=data)
        problem = problem or f"sent bytes without the digest of its {action}"
    raise invalid_reply(node, action, problem)


def invalid_reply(node: NodeName, action: str, problem: str) -> UnavailableError:
    """Return the error for a node that did not send what was requested."""
    return UnavailableError(one_line(problem), where=f"{action} of {node}")


@dataclass(frozen=True, slots=True)
class _Asking:
    client: RequestClient
    node: NodeName
    action: str
    most: int
    patience: float

    async def ask(self, args: ChunkArguments) -> ChunkedReply:
        answer = await self.client.ask(self.node, self.action, args, patience=self.patience)
        if answer.reply is None:
            raise self._invalid(answer.problem)
        if not answer.ok:
            raise self._invalid(answer.reply.error or "it refuses")
        return self._read(answer.reply.result)

    def _read(self, result: Mapping[str, Json]) -> ChunkedReply:
        try:
            header = mapping_of(result.get(self.action))
            fields = Fields(header, where=self.action)
            digest, size = fields.text("digest"), fields.integer("size")
            data = base64.b64decode(str(result.get("data")), validate=True)
        except (InvalidInputError, binascii.Error, ValueError) as error:
            raise self._invalid("sent an unknown answer (update localpuppet there)") from error
        if not 0 < size <= self.most or not data:
            raise self._invalid(f"its {self.action} has {size} bytes; at most {self.most} are read")
        return ChunkedReply(header=header, digest=digest, size=size, data=data)

    def _invalid(self, problem: str) -> UnavailableError:
        return invalid_reply(self.node, self.action, problem)
