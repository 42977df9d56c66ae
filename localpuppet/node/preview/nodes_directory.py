"""A directory of captures: one file for each node.

    web1.example.org.json      written by `localpuppet capture`, or by a person
    web2.example.org.yaml      written by a person: `facts:`, and what else the node needs
    4.2/debian-12-x86_64.facts facterdb's layout: `VERSION/SYSTEM.facts`, facts as JSON

- The file's name is the node's name. A file of facterdb gets the name `debian-12-x86-64.facter4.2`.
- Files whose name begins with a dot, or has another ending, are ignored.
"""

import hashlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.documents import Documents
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.strict_json import parse_object
from localpuppet.base.machine.files import input_errors
from localpuppet.node.preview.capture import MAX_BYTES, MAX_VALUES, NodeCapture

MAX_FILES = 200_000
_JSON, _YAML, _FACTS = ".json", (".yaml", ".yml"), ".facts"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFile:
    """A file of a node.

    Attributes:
        node: The node.
        path: The file.
        size: Its bytes.
        mtime_ns: When it was last changed, in nanoseconds since 1970.
        inode: Its number in the file system.
    """

    node: NodeName
    path: Path
    size: int
    mtime_ns: int
    inode: int


@dataclass(frozen=True, slots=True)
class NodesDirectory:
    """The captures of nodes.

    Attributes:
        path: The directory.
    """

    path: Path

    def files(self) -> list[NodeFile]:
        """Return the files, sorted by node; nothing is read.

        Raises:
            InvalidInputError: The directory is missing or empty, a name is not a node's, or two
                files are of one node.
        """
        files: dict[NodeName, NodeFile] = {}
        for file in self._listed():
            if (other := files.get(file.node)) is not None:
                raise InvalidInputError(
                    f"is of the same node as {other.path.name}", where=str(file.path)
                )
            files[file.node] = file
            if len(files) > MAX_FILES:
                raise InvalidInputError(
                    f"has more than {MAX_FILES} files of nodes", where=str(self.path)
                )
        if not files:
            raise InvalidInputError(
                "has no files of nodes",
                where=str(self.path),
                hint="run 'localpuppet capture', or write NODE.yaml with the key 'facts'",
            )
        return [files[node] for node in sorted(files)]

    def read(self, file: NodeFile) -> tuple[NodeCapture, str]:
        """Return the capture in a file, and the SHA-256 of its bytes, hexadecimal.

        Raises:
            InvalidInputError: The file is unreadable, too large or malformed.
        """
        data = _read(file.path)
        where = str(file.path)
        digest = hashlib.sha256(data).hexdigest()
        if file.path.suffix == _FACTS:
            facts = parse_object(data, where=where, limit=MAX_BYTES, values=MAX_VALUES)
            return NodeCapture(node=file.node, facts=facts), digest
        if file.path.suffix in _YAML:
            raw = Documents(None).parse(data, schema="capture", where=where)
        else:
            raw = parse_object(data, where=where, limit=MAX_BYTES, values=MAX_VALUES)
        if "facts" not in raw and "kernel" in raw:
            raise InvalidInputError(
                "has facts without the key 'facts'",
                where=where,
                hint="write them below 'facts', or give the file the ending .facts",
            )
        return NodeCapture.from_dict(raw, node=file.node, where=where), digest

    def digest(self, file: NodeFile) -> str:
        """Return the SHA-256 of a file's bytes, hexadecimal, without parsing them.

        Raises:
            InvalidInputError: The file is unreadable or too large.
        """
        return hashlib.sha256(_read(file.path)).hexdigest()

    def _listed(self) -> Iterator[NodeFile]:
        with input_errors(self.path):
            entries = sorted(os.scandir(self.path), key=lambda entry: entry.name)
            for entry in entries:
                name, path = entry.name, Path(entry.path)
                if name.startswith("."):
                    continue
                if entry.is_dir() and re.fullmatch(r"[0-9]+(\.[0-9]+)*", name):
                    for inner in sorted(path.glob(f"*{_FACTS}")):
                        yield _file(inner, f"{_system(inner)}.facter{name}")
                elif path.suffix in (_JSON, *_YAML):
                    yield _file(path, path.stem)
                elif path.suffix == _FACTS:
                    yield _file(path, _system(path))


def _system(path: Path) -> str:
    """Return a node's name for the name of a system: `windows-2012 r2-x86_64`."""
    return re.sub("[^a-z0-9.-]+", "-", path.stem.lower())


def _file(path: Path, name: str) -> NodeFile:
    try:
        node = NodeName.parse(name)
    except InvalidInputError as error:
        raise error.at(str(path)) from error
    with input_errors(path):
        status = path.stat()
    return NodeFile(
        node=node,
        path=path,
        size=status.st_size,
        mtime_ns=status.st_mtime_ns,
        inode=status.st_ino,
    )


def _read(path: Path) -> bytes:
    """Return the bytes of a regular file.

    Unlike `read_user_file` it accepts files of other users: in a CI job, another user has often
    made the work tree, and a capture is data only.
    """
    # A FIFO must not block before fstat can identify it.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
    with input_errors(path), os.fdopen(os.open(path, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise InvalidInputError("is not a regular file", where=str(path))
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise InvalidInputError(f"is too large: the limit is {MAX_BYTES} bytes", where=str(path))
    return data
