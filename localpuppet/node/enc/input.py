"""Reads a node's input from where it is: a file, standard input, an https URL, user data.

Owns: that an input with `app: foo/assigned` is read as the assignment in force makes it. Refuses to
know: what becomes of it (`enc.classify`).
"""

import hashlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from localpuppet.base.errors import InvalidInputError, LocalpuppetError
from localpuppet.base.formats.documents import Documents
from localpuppet.base.formats.text import url_without_secrets
from localpuppet.base.machine.files import MAX_DOCUMENT, read_user_file
from localpuppet.node.enc.assignment import Assignment
from localpuppet.node.enc.document import Input

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
        input: What it says, with the assignment; `foo/assigned` where no release of foo is.
        assignment: The assignment that it takes; `None` where it names its release itself.
    """

    name: str
    sha256: str
    input: Input
    assignment: Assignment | None = None

    @property
    def serial(self) -> int:
        """The serial of its assignment; 0 without one."""
        return 0 if self.assignment is None else self.assignment.serial

    def given(self, assignment: Assignment) -> "LoadedInput":
        """Return this input with an assignment."""
        return replace(self, input=assignment.over(self.input), assignment=assignment)

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
        assigned: Returns the assignment in force, if there is one.
    """

    documents: Documents
    fetch: Fetch
    user_data: Callable[[], bytes]
    assigned: Callable[[], Assignment | None]

    def read(self, source: str) -> LoadedInput:
        """Return the input at `source`, with the assignment in force where it takes one.

        Args:
            source: A path, `-` for standard input, an `https://` URL, or `userdata:`.

        Raises:
            InvalidInputError: It cannot be read, or is refused.
            UnavailableError: The https server, or the metadata service, did not give it.
            StateError: What the metadata service answered cannot be kept, or the assignment is
                damaged.
        """
        loaded = self.read_itself(source)
        if not loaded.input.app.is_assigned:
            return loaded
        assignment = self.assigned()
        if assignment is None or assignment.release.source != loaded.input.app.source:
            return loaded
        return loaded.given(assignment)

    def read_itself(self, source: str) -> LoadedInput:
        """Return the input at `source` as it stands; see `read`.

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
