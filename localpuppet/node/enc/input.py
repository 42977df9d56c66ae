"""A node's input from a file, standard input, an https URL or user data, and its node document.

- An input with `app: foo/assigned` is combined with the assignment in force.
- A URL is fetched without redirects, which could lead to another host.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, UnavailableError, errors_at
from localpuppet.base.formats.documents import Documents
from localpuppet.base.formats.names import NodeName, ReleasePath
from localpuppet.base.formats.text import url_without_secrets
from localpuppet.base.machine.files import MAX_DOCUMENT, is_file, read_user_file
from localpuppet.base.value import Value
from localpuppet.node.enc import document
from localpuppet.node.enc.assignment import Assignment

# The source of the input in the user data of the cloud.
USER_DATA = "userdata:"


class Fetch(Protocol):
    def get(self, url: str, *, limit: int) -> bytes:
        """Return the body, at most `limit` bytes."""


class LoadedInput(Value):
    """An input with its source.

    Attributes:
        name: A path, `standard input`, `user data`, or a URL without its query.
        input: The input, with the assignment; `app` stays `foo/assigned` if no release of foo is
            assigned.
    """

    name: str
    data: bytes
    input: document.Input
    assignment: Assignment | None = None

    @property
    def sha256(self) -> str:
        """The digest of the bytes; empty without any."""
        import hashlib  # 3 ms that `enc` saves

        return hashlib.sha256(self.data).hexdigest() if self.data else ""

    @property
    def serial(self) -> int:
        """The assignment's serial; 0 without one."""
        return 0 if self.assignment is None else self.assignment.serial

    def given(self, assignment: Assignment) -> "LoadedInput":
        return replace(self, input=assignment.over(self.input), assignment=assignment)

    def placed(self, error: LocalpuppetError) -> LocalpuppetError:
        """Return an error about this input with its name; return other errors unchanged."""
        return error.at(self.name) if error.where in ("app", self.input.app) else error


class InputReader(Value):
    documents: Documents
    fetch: Fetch
    user_data: Callable[[], bytes]
    assigned: Callable[[], Assignment | None]

    def read(self, source: str) -> LoadedInput:
        """Return the input at `source`, with the assignment in force if it uses one.

        `source` is a path, `-` for standard input, an `https://` URL, or `userdata:`.
        """
        loaded = self.read_unassigned(source)
        if not loaded.input.app.is_assigned:
            return loaded
        assignment = self.assigned()
        if assignment is None or assignment.release.source != loaded.input.app.source:
            return loaded
        return loaded.given(assignment)

    def app(self, path: Path) -> ReleasePath:
        """Return the release that the input in a file names; see `read`."""
        return self.read(str(path)).input.app

    def read_unassigned(self, source: str) -> LoadedInput:
        """Return the input at `source` without an assignment; see `read`."""
        name, data = self._bytes(source)
        if len(data) > MAX_DOCUMENT:
            raise InvalidInputError(f"is too large: the limit is {MAX_DOCUMENT} bytes", where=name)
        raw = self.documents.parse(data, schema="input", where=name)
        with errors_at(name, LocalpuppetError):
            return LoadedInput(name=name, data=data, input=document.Input.from_dict(raw))

    def _bytes(self, source: str) -> tuple[str, bytes]:
        """Return the name of the input in messages, and its bytes."""
        if not source:
            raise InvalidInputError(
                "the input's name is empty", hint=f"name a file, '-', an https URL or {USER_DATA}"
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
        path = Path(source)
        if path.is_dir() or path.suffix == ".pp":
            hint = "an input names a release of it; 'localpuppet try DIR' runs a work tree"
            kind = "a directory" if path.is_dir() else "Puppet code"
            raise InvalidInputError(f"is {kind}, not an input", where=source, hint=hint)
        if not path.exists():
            cure = f"write 'app: {source}' into a file, and name that file"
            hint = cure if "/tags/" in source else "'localpuppet init' writes the input of a node"
            raise InvalidInputError("file not found", where=source, hint=hint)
        return source, read_user_file(path)


def find_input(directory: Path, name: NodeName | None) -> str | None:
    """Return a node's input in `inputs/` of the root; `None` for the one input of the root."""
    if name is None or not directory.is_dir():
        return None
    path = directory / f"{name}.yaml"
    if not path.exists():
        raise InvalidInputError(f"no input exists for {name}", where=str(path))
    return str(path)


def read_enc(path: Path, documents: Documents) -> document.ReleaseEnc:
    """Return a release's `enc.yaml`; a missing file counts as empty."""
    if not is_file(path):
        return document.NO_RELEASE_ENC
    try:
        raw = documents.parse(
            read_user_file(path), schema="enc", where=str(path), may_be_empty=True
        )
        return document.ReleaseEnc.from_dict(raw)
    except LocalpuppetError as error:
        raise error if error.where.startswith(str(path)) else error.at(str(path)) from error


def node_document(
    loaded: LoadedInput, offered: document.ReleaseEnc, *, answer: document.EncData | None
) -> document.NodeDocument:
    """Return the node document: the release's ENC data, its layers, the ENC's answer, the input.

    Each overrides the ones before it; `offered` is the `enc.yaml` of the input's release.
    """
    with errors_at(loaded.name, LocalpuppetError):
        layers = offered.select(loaded.input.layers)
    if answer is not None:
        layers.append(answer)
    with errors_at(f"node document of {loaded.name}", LocalpuppetError):
        return document.classify([*layers, loaded.input.data])


class Https:
    """An https client; `timeout` is for the whole exchange."""

    def __init__(
        self, *, ca: Path | None, timeout: float, certificate: tuple[Path, Path] | None = None
    ) -> None:
        self._ca = ca
        self._timeout = timeout
        self._certificate = certificate

    def get(self, url: str, *, limit: int) -> bytes:
        """Return the body of `url`.

        Raises:
            InvalidInputError: The URL or the CA file is refused, or the body is too large.
            UnavailableError: The server sends no answer in time, is not trusted, or answers with a
                status other than 200.
        """
        from localpuppet.base import http  # 40 ms that a local input must not pay

        where = url_without_secrets(url)
        client = http.HttpClient(http.HttpRoute(ca=self._ca, certificate=self._certificate))
        try:
            with client.open(http.HttpRequest(url=url), http.Deadline(self._timeout)) as answer:
                if answer.status != 200:
                    raise UnavailableError(f"the server answered {answer.status}", where=where)
                return answer.body(limit)
        except http.BodyTooLargeError as error:
            raise InvalidInputError(str(error), where=where) from error
        except http.HttpError as error:
            raise UnavailableError(
                f"cannot be downloaded: {error}",
                where=where,
                hint="check that the server is up and its CA is trusted",
            ) from error
