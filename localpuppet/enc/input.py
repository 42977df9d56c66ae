"""Reads a node's input from where it is: a file, standard input, an https URL, user data.

Refuses to know: what becomes of it (`enc.classify`).
"""

import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from localpuppet.enc.document import Input
from localpuppet.errors import InvalidInputError, LocalpuppetError
from localpuppet.formats.documents import Documents
from localpuppet.formats.text import url_without_secrets
from localpuppet.machine.files import MAX_DOCUMENT, read_user_file

# What an input is called that the user data is.
USER_DATA = "userdata:"


class Fetch(Protocol):
    """Something that can fetch a URL."""

    def get(self, url: str, *, limit: int) -> bytes:
        """Return the body, at most `limit` bytes."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedInput:
    """An input as it was read.

    Attributes:
        name: A path, `standard input`, `user data`, or a URL without its query.
        sha256: Digest of the bytes.
        input: What it says.
    """

    name: str
    sha256: str
    input: Input

    def placed(self, error: LocalpuppetError) -> LocalpuppetError:
        """Return an error about this input with its name; others as they are."""
        return error.at(self.name) if error.where == "app" else error


@dataclass(frozen=True, slots=True, kw_only=True)
class InputReader:
    """Reads inputs.

    Attributes:
        documents: Reads documents.
        fetch: The https client.
        user_data: Returns the input in the user data that the cloud has for this machine.
    """

    documents: Documents
    fetch: Fetch
    user_data: Callable[[], bytes]

    def read(self, source: str) -> LoadedInput:
        """Return the input at `source`.

        Args:
            source: A path, `-` for standard input, an `https://` URL, or `userdata:`.

        Raises:
            InvalidInputError: It cannot be read, or is refused.
            UnavailableError: The https server, or the metadata service, did not give it.
            StateError: What the metadata service answered cannot be kept.
        """
        name, data = self._bytes(source)
        if len(data) > MAX_DOCUMENT:
            raise InvalidInputError(f"is too large: the limit is {MAX_DOCUMENT} bytes", where=name)
        raw = self.documents.parse(data, schema="input", where=name)
        try:
            return LoadedInput(
                name=name, sha256=hashlib.sha256(data).hexdigest(), input=Input.from_dict(raw)
            )
        except LocalpuppetError as error:
            raise error.at(name) from error

    def _bytes(self, source: str) -> tuple[str, bytes]:
        """Return what messages call the input, and its bytes."""
        if not source:
            raise InvalidInputError(
                "the input's name is empty", hint=f"a file, '-', an https URL or {USER_DATA}"
            )
        if source == "-":
            if sys.stdin is None:
                raise InvalidInputError("is closed", where="standard input")
            return "standard input", sys.stdin.buffer.read(MAX_DOCUMENT + 1)
        if source == USER_DATA:
            return "user data", self.user_data()
        if source.startswith("https://"):
            name = url_without_secrets(source)
            return name, self.fetch.get(source, limit=MAX_DOCUMENT)
        if "://" in source:
            where = url_without_secrets(source)
            raise InvalidInputError("only https:// URLs are fetched", where=where)
        return source, read_user_file(Path(source))
