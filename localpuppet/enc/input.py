"""Reads a node's input from where it is: a file, standard input, an https URL.

Refuses to know: what becomes of it (`enc.classify`).
"""

import hashlib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from localpuppet.enc.document import Input
from localpuppet.errors import InvalidInputError, LocalpuppetError
from localpuppet.formats.documents import Documents
from localpuppet.formats.text import url_without_secrets
from localpuppet.machine.files import MAX_DOCUMENT, read_user_file


class Fetch(Protocol):
    """Something that can fetch a URL."""

    def get(self, url: str, *, limit: int) -> bytes:
        """Return the body, at most `limit` bytes."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedInput:
    """An input as it was read.

    Attributes:
        name: A path, `-` or a URL without its query.
        sha256: Digest of the bytes.
        input: What it says.
    """

    name: str
    sha256: str
    input: Input

    def placed(self, error: LocalpuppetError) -> LocalpuppetError:
        """Return an error about this input with its name; others as they are."""
        return error.at(self.name) if error.where == "app" else error


def read_input(source: str, *, documents: Documents, fetch: Fetch) -> LoadedInput:
    """Return the input at `source`: a path, `-` for standard input, or an `https://` URL.

    Raises:
        InvalidInputError: It cannot be read, or is refused.
        UnavailableError: The https server did not give it.
    """
    name = source
    if not source:
        raise InvalidInputError("the input's name is empty", hint="a file, '-' or an https URL")
    if source == "-":
        if sys.stdin is None:
            raise InvalidInputError("is closed", where="standard input")
        data = sys.stdin.buffer.read(MAX_DOCUMENT + 1)
        name = "standard input"
    elif source.startswith("https://"):
        data = fetch.get(source, limit=MAX_DOCUMENT)
        name = url_without_secrets(source)
    elif "://" in source:
        raise InvalidInputError("only https:// URLs are fetched", where=url_without_secrets(source))
    else:
        data = read_user_file(Path(source))
    if len(data) > MAX_DOCUMENT:
        raise InvalidInputError(f"is too large: the limit is {MAX_DOCUMENT} bytes", where=name)
    raw = documents.parse(data, schema="input", where=name)
    try:
        return LoadedInput(
            name=name, sha256=hashlib.sha256(data).hexdigest(), input=Input.from_dict(raw)
        )
    except LocalpuppetError as error:
        raise error.at(name) from error
