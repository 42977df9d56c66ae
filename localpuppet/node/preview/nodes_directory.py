"""A directory of captures: one file for each node.

    web1.example.org.json      written by `localpuppet capture`, or by a person
    web2.example.org.yaml      written by a person: `facts:`, and what else the node needs
    4.2/debian-12-x86_64.facts facterdb's layout: `VERSION/SYSTEM.facts`, facts as JSON

- The file's name is the node's name. A file of facterdb gets the name `debian-12-x86-64.facter4.2`.
- Files whose name begins with a dot, or has another ending, are ignored.
- A file that cannot be used concerns its node only. A link may lead to a file in the directory.
"""

import hashlib
import os
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

from localpuppet.base.errors import InvalidInputError, errors_at
from localpuppet.base.formats.documents import Documents
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.strict_json import parse_object
from localpuppet.base.formats.text import one_line
from localpuppet.base.machine.files import disk_errors, input_errors, write_durably
from localpuppet.base.machine.open_tree import OpenTree
from localpuppet.base.value import Value
from localpuppet.node.preview.node_capture import CapturedNode, NodeCapture
from localpuppet.node.preview.preview_limits import MAX_CAPTURE, MAX_CAPTURE_VALUES, MAX_CAPTURES
from localpuppet.node.preview.release_index import TreeStates

# Captures that stay parsed.
_CAPTURES = 64
# A file that changed less than this before it was read may change again within the same time stamp.
_SETTLED = 2_000_000_000
# Characters of a name that no node can have.
_MAX_SHOWN = 200
_JSON, _YAML, _FACTS = ".json", (".yaml", ".yml"), ".facts"


class NodeFile(Value):
    """A file of a node.

    Attributes:
        node: The node; the name of the file if no node can have that name.
        status: Its device, number, size and times. While they are the same, so are its bytes: only
            root can set the time of a change of metadata.
        changed: The last of its times, in nanoseconds since 1970.
    """

    node: str
    path: Path
    status: str = ""
    changed: int = 0
    problem: InvalidInputError | None = None


class NodesDirectory:
    """The captures of nodes, of at most `limit` bytes each.

    A link on the way must not leave the directory `inside`.
    """

    def __init__(self, path: Path, *, inside: Path | None = None, limit: int = MAX_CAPTURE) -> None:
        self.path = path
        self._inside = inside
        self._limit = limit
        self._captures = lru_cache(_CAPTURES)(self.read)

    def nodes(self, known: TreeStates) -> list[CapturedNode]:
        """Return the nodes; only files that changed are read."""
        name = f"captures {self.path}"
        before = known.get(name) or {}
        settled = time.time_ns() - _SETTLED
        nodes, after = [], {}
        for file in self.files():
            status, _, digest = before.get(file.node, "").rpartition(" ")
            if status != file.status or file.problem:
                digest = self._digest(file)
            if digest and (status == file.status or file.changed < settled):
                after[file.node] = f"{file.status} {digest}"
            load = partial(self._captures, file)
            nodes.append(CapturedNode(name=file.node, capture=bytes.fromhex(digest), load=load))
        if after != before:
            known.put(name, after)
        return nodes

    def files(self) -> list[NodeFile]:
        """Return the files, sorted by node; nothing is read."""
        files: dict[str, NodeFile] = {}
        for file in self._listed():
            if (other := files.get(file.node)) is not None:
                problem = InvalidInputError(
                    f"is of the same node as {other.path.name}", where=_shown(file.path)
                )
                files[file.node] = replace(file, problem=problem)
                continue
            files[file.node] = file
            if len(files) > MAX_CAPTURES:
                raise InvalidInputError(
                    f"has more than {MAX_CAPTURES} files of nodes", where=str(self.path)
                )
        if not files:
            raise InvalidInputError(
                "has no files of nodes",
                where=str(self.path),
                hint="run 'localpuppet capture', or write NODE.yaml with the key 'facts'",
            )
        return [files[node] for node in sorted(files)]

    def read(self, file: NodeFile) -> NodeCapture:
        data, where = self._bytes(file), _shown(file.path)
        node, suffix = NodeName.parse(file.node), file.path.suffix
        if suffix in _YAML:
            raw = Documents(None).parse(data, schema="capture", where=where)
        else:
            raw = parse_object(data, where=where, limit=self._limit, values=MAX_CAPTURE_VALUES)
        if suffix == _FACTS:
            return NodeCapture(node=node, facts=raw)
        if "facts" not in raw and "kernel" in raw:
            raise InvalidInputError(
                "has facts without the key 'facts'",
                where=where,
                hint="write them below 'facts', or give the file the ending .facts",
            )
        return NodeCapture.from_dict(raw, node=node, where=where)

    def _digest(self, file: NodeFile) -> str:
        """Return the digest of a file's bytes; empty if they cannot be read."""
        try:
            return hashlib.sha256(self._bytes(file)).hexdigest()
        except InvalidInputError:
            return ""  # `read` reports it

    def _bytes(self, file: NodeFile) -> bytes:
        """Return the bytes of a regular file.

        Unlike `read_user_file` it accepts files of other users: in a CI job, another user has often
        made the work tree, and a capture is data only.
        """
        if file.problem is not None:
            raise file.problem
        where, name = _shown(file.path), str(file.path.relative_to(self.path))
        with input_errors(Path(where)), self._tree() as tree:
            data = tree.read(name, most=self._limit + 1)
        if len(data) > self._limit:
            raise InvalidInputError(f"is too large: the limit is {self._limit} bytes", where=where)
        return data

    def _tree(self) -> OpenTree:
        return OpenTree(self.path, inside=self._inside)

    def _listed(self) -> Iterator[NodeFile]:
        with input_errors(self.path), self._tree() as tree:
            for name in sorted(os.listdir(tree.descriptor)):  # noqa: PTH208 - of a descriptor
                path = Path(name)
                if name.startswith("."):
                    continue
                if re.fullmatch(r"[0-9]+(\.[0-9]+)*", name):
                    for inner in self._version(tree, name):
                        yield self._file(tree, f"{name}/{inner}", f"{_system(inner)}.facter{name}")
                elif path.suffix in (_JSON, *_YAML):
                    yield self._file(tree, name, path.stem)
                elif path.suffix == _FACTS:
                    yield self._file(tree, name, _system(name))

    def _version(self, tree: OpenTree, name: str) -> list[str]:
        """Return the names of files in a directory of facterdb; none if it is no directory."""
        try:
            directory = tree.open(name)
        except (OSError, InvalidInputError):
            return []
        try:
            names = os.listdir(directory)  # noqa: PTH208
        except NotADirectoryError:
            return []
        finally:
            os.close(directory)
        return sorted(inner for inner in names if inner.endswith(_FACTS))

    def _file(self, tree: OpenTree, name: str, node: str) -> NodeFile:
        path = self.path / name
        where = _shown(path)
        try:
            with errors_at(where):
                NodeName.parse(node)
            with input_errors(Path(where)):
                descriptor = tree.open(name)
        except InvalidInputError as error:
            return NodeFile(node=_shown(Path(node))[:_MAX_SHOWN], path=path, problem=error)
        try:
            status = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        times = status.st_mtime_ns, status.st_ctime_ns
        numbers = status.st_dev, status.st_ino, status.st_size, *times
        return NodeFile(
            node=node, path=path, status=" ".join(map(str, numbers)), changed=max(times)
        )


def write_capture(directory: Path, capture: NodeCapture) -> None:
    """Write a capture to a private file `NODE.json`; one that did not change leaves it alone."""
    path, data = directory / f"{capture.node}.json", capture.to_bytes()
    with disk_errors(path):
        unchanged = path.is_file() and not path.is_symlink() and path.read_bytes() == data
        unchanged = unchanged and path.stat().st_mode & 0o777 == 0o600
    if not unchanged:
        write_durably(path, data)


def _shown(path: Path) -> str:
    """Return a path for messages, whatever its bytes are."""
    return one_line(os.fsencode(path).decode("utf-8", "backslashreplace"))


def _system(name: str) -> str:
    """Return a node's name for the name of a system: `windows-2012 r2-x86_64.facts`."""
    return re.sub("[^a-z0-9.-]+", "-", Path(name).stem.lower())
