"""The arguments of `capture` and `catalog`: which part of the reply, which is too large for one."""

import re
from dataclasses import dataclass

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.fields import Fields
from localpuppet.base.formats.values import Json

MAX_CHUNKS = 64
_DIGEST = re.compile(r"[0-9a-f]{64}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkArguments:
    """The arguments of `capture` and `catalog`.

    Attributes:
        chunk: The number of the chunk, from 0.
        digest: The digest of the data that the caller began with; empty for the first chunk.
    """

    chunk: int = 0
    digest: str = ""

    @classmethod
    def read(cls, fields: Fields) -> "ChunkArguments":
        """Read the arguments from JSON fields.

        Raises:
            InvalidInputError: They are invalid.
        """
        fields.only(("chunk", "digest"))
        return cls(
            chunk=fields.integer("chunk", minimum=0, maximum=MAX_CHUNKS - 1),
            digest=fields.parsed("digest", _digest) if "digest" in fields else "",
        )

    def to_dict(self) -> dict[str, Json]:
        """Return the JSON form."""
        digest: dict[str, Json] = {"digest": self.digest} if self.digest else {}
        return {"chunk": self.chunk, **digest}


def _digest(text: str) -> str:
    if not _DIGEST.match(text):
        raise InvalidInputError("is not a digest")
    return text
