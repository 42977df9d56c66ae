"""Read documents that users write, check them against their schema, and cache the result.

Parsing and checking depend on the bytes only, and cost 110 ms of imports. Accepted documents are
cached as JSON beside their text, so that a warm start skips both. The name of a file is a checksum:
a digest would load OpenSSL, which takes 3 ms.
"""

import json
import os
from binascii import crc32
from pathlib import Path
from typing import cast

from localpuppet import __version__
from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.files import make_private, write_durably

# Part of every cached text: raise it when the accepted language changes within a version.
RULES = "1"
KEPT = 64


class Documents:
    """Reads and checks documents, and caches them in the directory `memory`."""

    def __init__(self, memory: Path | None) -> None:
        self._memory = memory
        self._accepted: dict[Path, dict[str, Json]] = {}

    def parse(
        self,
        data: bytes,
        *,
        schema: str,
        where: str,
        ruby: bool = False,
        may_be_empty: bool = False,
    ) -> dict[str, Json]:
        """Return the document in `data`.

        Args:
            data: Strict YAML, at most 1 MiB.
            schema: The name of its schema ("input", "manifest", "enc", "settings", …).
            ruby: See `strict_yaml.parse`.
            may_be_empty: Accept an empty document as an empty mapping.

        Raises:
            InvalidInputError: The document is not strict YAML, or does not fit the schema.
        """
        document = self.recall(data, schema=schema)
        if document is not None:
            return document
        from localpuppet.base.formats import schemas, strict_yaml

        value = strict_yaml.parse(data, where=where, ruby=ruby)
        if value is None:
            if not may_be_empty:
                raise InvalidInputError("is empty", where=where, hint="write a line KEY: VALUE")
            value = {}
        schemas.check(value, schema=schema, where=where)
        accepted = cast("dict[str, Json]", value)
        self.accept(data, accepted, schema=schema)
        return accepted

    def recall(self, data: bytes, *, schema: str) -> dict[str, Json] | None:
        """Return the cached value of these bytes; `None` if the cache has none."""
        if self._memory is None:
            return None
        path, text = _cached(self._memory, data, schema)
        try:
            record = loads(path.read_bytes())
        except (OSError, ValueError):
            return None  # missing or incomplete: read the document itself
        is_same = isinstance(record, dict) and record.get("text") == text
        return cast("dict[str, Json]", record["document"]) if is_same else None

    def accept(self, data: bytes, value: dict[str, Json], *, schema: str) -> None:
        """Keep an accepted document until `remember` writes the cache."""
        if self._memory is not None:
            path, text = _cached(self._memory, data, schema)
            self._accepted[path] = {"text": text, "document": value}

    def remember(self) -> None:
        """Write the accepted documents to the cache, late: rejected input leaves no files.

        A disk error is ignored: it only makes the next start slower.
        """
        try:
            for path, value in self._accepted.items():
                make_private(path.parent)
                write_durably(path, json.dumps(value).encode())
            if self._accepted and self._memory is not None:
                _forget(self._memory)
        except (StateError, OSError):
            return
        self._accepted.clear()


def _cached(memory: Path, data: bytes, schema: str) -> tuple[Path, str]:
    """Return the file of a document, and the text that it must have."""
    text = f"{__version__}/{RULES}/{schema}/{data.decode('utf-8', 'surrogateescape')}"
    return memory / f"{schema}-{crc32(data):08x}.json", text


def _forget(memory: Path) -> None:
    """Delete all but the `KEPT` newest documents in `memory`."""
    with os.scandir(memory) as entries:
        oldest_last = sorted(
            ((entry.stat().st_mtime, entry.path) for entry in entries), reverse=True
        )
    for _, path in oldest_last[KEPT:]:
        Path(path).unlink(missing_ok=True)
