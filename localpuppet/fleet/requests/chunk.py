"""The arguments of `capture` and `catalog`: which part of the reply, which is too large for one."""

from dataclasses import dataclass, field

from localpuppet.base.formats.json_form import JsonForm, integer, parsed
from localpuppet.base.formats.names import parse_sha256

MAX_CHUNKS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkArguments(JsonForm):
    """The arguments of `capture` and `catalog`.

    Attributes:
        chunk: The number of the chunk, from 0.
        digest: The digest of the data that the caller began with; empty for the first chunk.
    """

    chunk: int = field(default=0, metadata=integer(minimum=0, maximum=MAX_CHUNKS - 1, always=True))
    digest: str = field(default="", metadata=parsed(parse_sha256))
