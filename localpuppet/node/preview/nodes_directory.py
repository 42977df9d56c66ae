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
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from localpuppet.base.errors import InvalidInputError, errors_at
from localpuppet.base.formats.documents import Documents
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.strict_json import parse_object
from localpuppet.base.machine.files import disk_errors, input_errors, write_durably
from localpuppet.node.preview.capture import MAX_BYTES, MAX_VALUES, CapturedNode, NodeCapture
from localpuppet.node.preview.release_index import TreeStates

MAX_FILES = 200_000
# Captures that stay parsed.
_CAPTURES = 64
# A file that changed less than this before it was read may change again within the same time stamp.
_SETTLED = 2_000_000_000
_JSON, _YAML, _FACTS = ".json", (".yaml", ".yml"), ".facts"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFile:
    """A file of a node.

    Attributes:
        node: The node.
        path: The file.
        status: Its device, number, size and times. While they are the same, so are its bytes: only
            root can set the time of a change of metadata.
        changed: The last of its times, in nanoseconds since 1970.
    """

    node: NodeName
    path: Path
    status: str
    changed: int


class NodesDirectory:
    """The captures of nodes.

    Args:
        path: The directory.
        limit: Bytes of a file.

    Attributes:
        path: The directory.
    """

    def __init__(self, path: Path, *, limit: int = MAX_BYTES) -> None:
        self.path = path
        self._limit = limit
        self._captures = lru_cache(_CAPTURES)(self.read)

    def nodes(self, known: TreeStates) -> list[CapturedNode]:
        """Return the nodes; only files that changed are read.

        Args:
            known: Remembers the digests of files by their status.

        Raises:
            InvalidInputError: The directory, or a file in it, is unreadable or too large.
        """
        name = f"captures {self.path}"
        before = known.get(name) or {}
        settled = time.time_ns() - _SETTLED
        nodes, after = [], {}
        for file in self.files():
            status, _, digest = before.get(file.node, "").rpartition(" ")
            if status != file.status:
                digest = hashlib.sha256(self._bytes(file)).hexdigest()
            if status == file.status or file.changed < settled:
                after[str(file.node)] = f"{file.status} {digest}"
            load = partial(self._captures, file)
            nodes.append(CapturedNode(name=file.node, capture=bytes.fromhex(digest), load=load))
        if after != before:
            known.put(name, after)
        return nodes

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

    def read(self, file: NodeFile) -> NodeCapture:
        """Return the capture in a file.

        Raises:
            InvalidInputError: The file is unreadable, too large or malformed.
        """
        data, where = self._bytes(file), str(file.path)
        if file.path.suffix in _YAML:
            raw = Documents(None).parse(data, schema="capture", where=where)
        else:
            raw = parse_object(data, where=where, limit=self._limit, values=MAX_VALUES)
        if file.path.suffix == _FACTS:
            return NodeCapture(node=file.node, facts=raw)
        if "facts" not in raw and "kernel" in raw:
            raise InvalidInputError(
                "has facts without the key 'facts'",
                where=where,
                hint="write them below 'facts', or give the file the ending .facts",
            )
        return NodeCapture.from_dict(raw, node=file.node, where=where)

    def _bytes(self, file: NodeFile) -> bytes:
        """Return the bytes of a regular file.

        Unlike `read_user_file` it accepts files of other users: in a CI job, another user has often
        made the work tree, and a capture is data only.
        """
        path = file.path
        # A FIFO must not block before fstat can identify it.
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        with input_errors(path), os.fdopen(os.open(path, flags), "rb") as opened:
            if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
                raise InvalidInputError("is not a regular file", where=str(path))
            data = opened.read(self._limit + 1)
        if len(data) > self._limit:
            raise InvalidInputError(
                f"is too large: the limit is {self._limit} bytes", where=str(path)
            )
        return data

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


def write_capture(directory: Path, capture: NodeCapture) -> None:
    """Write a capture to a private file `NODE.json`; one that did not change leaves it alone.

    Raises:
        StateError: The disk refused.
        InvalidInputError: The capture is too large.
    """
    path, data = directory / f"{capture.node}.json", capture.to_bytes()
    with disk_errors(path):
        unchanged = path.is_file() and not path.is_symlink() and path.read_bytes() == data
        unchanged = unchanged and path.stat().st_mode & 0o777 == 0o600
    if not unchanged:
        write_durably(path, data)


def _system(path: Path) -> str:
    """Return a node's name for the name of a system: `windows-2012 r2-x86_64`."""
    return re.sub("[^a-z0-9.-]+", "-", path.stem.lower())


def _file(path: Path, name: str) -> NodeFile:
    with errors_at(str(path)):
        node = NodeName.parse(name)
    with input_errors(path):
        status = path.stat()
    times = status.st_mtime_ns, status.st_ctime_ns
    numbers = status.st_dev, status.st_ino, status.st_size, *times
    return NodeFile(node=node, path=path, status=" ".join(map(str, numbers)), changed=max(times))
