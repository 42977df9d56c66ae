"""The digest of a tree: one SHA-256 for names, kinds and bytes of everything in it.

The specification is docs/reference/tree-digest.md; standard tools can recompute it. This module
also decides which members a tree may have.
"""

import hashlib
import posixpath
import re
from collections.abc import Iterable

from localpuppet.base.errors import IntegrityError
from localpuppet.base.value import Value
from localpuppet.node.releases.limits import size_problem

_BAD_NAME = re.compile(rb"[\x00-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\xa8-\xae]|\xe2\x81[\xa6-\xa9]")


class TreeEntry(Value):
    """A file or symlink of a tree.

    Attributes:
        path: Relative to the tree's root, as bytes, separated by `/`.
        kind: `F` an ordinary file, `X` an executable one, `L` a symlink.
        sha256: Digest of the file's bytes, or of the link's target.
    """

    path: bytes
    kind: str
    sha256: str


def digest(entries: Iterable[TreeEntry]) -> str:
    """Return the digest of a tree: the SHA-256 of its listing.

    The listing has a line `KIND SHA256 PATH` for every entry, sorted by the bytes of the path.
    """
    listing = hashlib.sha256()
    for entry in sorted(entries, key=lambda entry: entry.path):
        listing.update(f"{entry.kind} {entry.sha256} ".encode() + entry.path + b"\n")
    return listing.hexdigest()


def check_path(path: bytes, *, where: str) -> None:
    """Reject a path that must not be in a tree.

    Raises:
        IntegrityError: The path has control or bidirectional characters, a component `.git` or
            `..`, or is too long or too deep.
    """
    problem = size_problem(path)
    if problem:
        place = path[:120].decode("utf-8", "backslashreplace")
        raise IntegrityError(problem, where=f"{where}: {place!r}")
    shown = path.decode("utf-8", "backslashreplace")
    if _BAD_NAME.search(path):
        raise IntegrityError("a file's name has a control character", where=f"{where}: {shown!r}")
    components = path.split(b"/")
    if any(part.lower() in (b"", b".", b"..", b".git") for part in components):
        raise IntegrityError("a file's name is not allowed", where=f"{where}: {shown!r}")


def check_link(path: bytes, target: bytes, *, where: str) -> None:
    """Reject a symlink that leads out of its tree.

    Raises:
        IntegrityError: Its target is absolute, climbs out, or has a control character.
    """
    shown = path.decode("utf-8", "backslashreplace")
    if target.startswith(b"/"):
        raise IntegrityError("an absolute symlink", where=f"{where}: {shown!r}")
    if _BAD_NAME.search(target) or not target:
        raise IntegrityError("a symlink with a bad target", where=f"{where}: {shown!r}")
    reached = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    if reached == b".." or reached.startswith(b"../"):
        raise IntegrityError("a symlink that points outside the tree", where=f"{where}: {shown!r}")
