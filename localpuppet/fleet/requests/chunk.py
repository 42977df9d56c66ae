"""The arguments of `capture` and `catalog`: which part of the reply, which is too large for one."""

from typing import Annotated

from localpuppet.base.formats.names import parse_sha256
from localpuppet.base.formats.records import ALWAYS, AllowedRange, Message

MAX_CHUNKS = 64


class ChunkArguments(Message):
    """The arguments of `capture` and `catalog`.

    Attributes:
        chunk: The number of the chunk, from 0.
        digest: The digest of the data that the caller began with; empty for the first chunk.
    """

    chunk: Annotated[int, AllowedRange(minimum=0, maximum=MAX_CHUNKS - 1), ALWAYS] = 0
    digest: Annotated[str, parse_sha256] = ""
