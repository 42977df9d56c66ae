"""classify: from an input to the node document that Puppet's external node classifier gets.

Owns: reading an input from its source, asking the site's own ENC command, the order of the
layers, writing the document. Refuses to know: what becomes of it.
"""

import hashlib
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from localpuppet.documents import Documents
from localpuppet.errors import EncError, InvalidInputError, LocalpuppetError, StateError
from localpuppet.files import MAX_DOCUMENT, read_user_file, write_durably
from localpuppet.model.names import NodeName
from localpuppet.model.node import EncData, Input, NodeDocument, classify
from localpuppet.model.text import one_line, url_without_secrets
from localpuppet.ports import Processes
from localpuppet.release import Release


class Fetch(Protocol):
    """Something that can fetch a URL."""

    def get(self, url: str, *, limit: int) -> bytes:
        """Return the body, at most `limit` bytes."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """An input as it was read.

    Attributes:
        name: A path, `-` or a URL without its query.
        sha256: Digest of the bytes.
        input: What it says.
    """

    name: str
    sha256: str
    input: Input


def read_input(source: str, *, documents: Documents, fetch: Fetch) -> Source:
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
        return Source(
            name=name, sha256=hashlib.sha256(data).hexdigest(), input=Input.from_dict(raw)
        )
    except LocalpuppetError as error:
        raise error.at(name) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class EncCommand:
    """The site's own ENC: another program that says what a node gets.

    Attributes:
        argv: Absolute program and arguments; the node's name is put behind them.
        timeout: Seconds.
        env: Its environment.
    """

    argv: tuple[str, ...]
    timeout: float
    env: Mapping[str, str]

    @classmethod
    def parse(cls, text: str, *, timeout: float, env: Mapping[str, str]) -> "EncCommand":
        """Return the command in the setting `enc`.

        Raises:
            InvalidInputError: It is empty, or its program is not an absolute path.
        """
        try:
            argv = tuple(shlex.split(text))
        except ValueError as error:
            raise InvalidInputError(f"is no command: {error}", where="enc") from error
        if not argv or not argv[0].startswith("/"):
            raise InvalidInputError("must start with an absolute path", where="enc")
        return cls(argv=argv, timeout=timeout, env=env)

    def ask(self, node: NodeName, *, processes: Processes, documents: Documents) -> EncData:
        """Return its answer for `node`, held to the rules for every input.

        Raises:
            EncError: It failed, hung, was silent, or its answer is refused.
        """
        where = f"enc {self.argv[0]}"
        try:
            output = processes.capture(
                [*self.argv, node], env=self.env, timeout=self.timeout, limit=MAX_DOCUMENT
            )
        except StateError as error:
            raise EncError(error.what, where=where, hint="see 'enc' in localpuppet.yaml") from error
        if output is None:
            if processes.cancellations():
                raise EncError("was ended by a signal to us", where=where)
            raise EncError(f"enc timeout: timed out after {self.timeout:g} s", where=where)
        if output.ended.code != 0:
            how = f"exited {output.ended.code}"
            if output.ended.signal:
                how = f"was killed by signal {output.ended.signal}"
            said = one_line(output.stderr.decode("utf-8", "replace").strip())[-200:]
            raise EncError(f"{how}: {said}" if said else how, where=where)
        if len(output.stdout) > MAX_DOCUMENT:
            raise EncError(f"answered more than {MAX_DOCUMENT} bytes", where=where)
        if not output.stdout.strip():
            raise EncError("answered nothing: could not find node", where=where)
        try:
            raw = documents.parse(output.stdout, schema="enc_output", where=where, symbol_keys=True)
            return EncData.from_dict(raw)
        except InvalidInputError as error:
            placed = error if error.where.startswith(where) else error.at(where)
            raise EncError(placed.what, where=placed.where, hint=placed.hint) from error


def node_document(
    source: Source,
    release: Release,
    *,
    answer: EncData | None,
) -> NodeDocument:
    """Return the node document: the release's ENC data, its layers, the ENC's answer, the input.

    Each wins over the ones before it.

    Args:
        source: The input.
        release: The release that it names.
        answer: What the site's own ENC command said, if there is one.

    Raises:
        InvalidInputError: A layer or a `%{…}` is unknown.
    """
    try:
        layers = release.enc.select(source.input.layers)
    except LocalpuppetError as error:
        raise error.at(source.name) from error
    if answer is not None:
        layers.append(answer)
    try:
        return classify([*layers, source.input.data])
    except LocalpuppetError as error:
        raise error.at(f"node document of {source.name}") from error


def write_document(document: NodeDocument, path: Path) -> None:
    """Put the document where the ENC script finds it.

    Raises:
        StateError: The disk refused.
    """
    write_durably(path, document.to_yaml().encode("utf-8"))
