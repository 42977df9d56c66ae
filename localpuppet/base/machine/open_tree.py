"""Read below a directory, and nowhere else: trees, data and captures that others wrote.

    with OpenTree(checkout) as tree:
        tree.read("data/common.yaml", most=MAX_BYTES)

- Each component of a name is opened in the directory before it, and the kernel follows no link.
- A link is judged by its text: one that is absolute or climbs above the top is refused, whether it
  leads to something or not. So a name means the same wherever the tree is, and a link that is
  exchanged meanwhile leads nowhere else.
"""

import errno
import os
import stat
from collections import deque
from pathlib import Path
from types import TracebackType

from localpuppet.base.errors import InvalidInputError

# A FIFO does not block, and no terminal becomes that of this process.
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)
# As many as the kernel follows on one way.
_MAX_LINKS = 40


class OpenTree:
    """An open directory; a context manager that closes it.

    Args:
        path: The directory. Links on the way to it are followed.
        inside: A directory that a path below it must not leave; `None` for any path.

    Raises:
        OSError: There is no such directory.
        InvalidInputError: A link on the way leads out of `inside`.
    """

    def __init__(
        self, path: Path, *, inside: Path | None = None, shown: Path | None = None
    ) -> None:
        self.path = path if shown is None else shown
        tops = (top for top in path.parents if inside and top.exists() and top.samefile(inside))
        top = next(tops, None)
        if top is not None:
            with OpenTree(top) as outer:
                self.descriptor = outer.open(str(path.relative_to(top)))
        else:
            self.descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> "OpenTree":
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self.descriptor)

    def open(self, name: str) -> int:
        """Return a descriptor of the file or directory that a name leads to, for reading.

        Raises:
            OSError: It leads nowhere, or cannot be opened.
            InvalidInputError: It leads out of the tree, also to a file that does not exist.
        """
        way = _Way(self.descriptor, name)
        try:
            return way.end()
        except _LeavingError as error:
            raise InvalidInputError(
                "is a link that leads out of its tree",
                where=str(self.path / name),
                hint="replace it by a file, or by a relative link to a file in the tree",
            ) from error
        except ValueError as error:  # it has a NUL, or is not text
            raise InvalidInputError("is not the name of a file", where=str(self.path)) from error
        finally:
            way.close()

    def find(self, name: str) -> int | None:
        """Return what `open` does, or `None` if the name leads nowhere."""
        try:
            return self.open(name)
        except OSError as error:
            if error.errno in (*_MISSING, errno.ELOOP):
                return None
            raise

    def read(self, name: str, *, most: int) -> bytes:
        """Return the first bytes of a regular file; see `open` for errors."""
        descriptor = self.open(name)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise InvalidInputError("is not a regular file", where=str(self.path / name))
        with os.fdopen(descriptor, "rb") as file:
            return file.read(most)


class _LeavingError(Exception):
    """A name leads out of its tree."""


class _Way:
    """The way from the top of a tree along a name."""

    def __init__(self, top: int, name: str) -> None:
        self._opened = [os.dup(top)]
        self._waiting = deque(name.split("/"))
        self._links = 0
        self._below = 0  # directories below one that is missing
        self._missing: OSError | None = None

    def end(self) -> int:
        """Go to the end and return its descriptor, which the caller closes."""
        while self._waiting:
            part = self._waiting.popleft()
            if part == "..":
                self._climb()
            elif part in ("", "."):
                continue
            elif self._below:
                self._below += 1
            else:
                self._enter(part)
        if self._missing is not None:
            raise self._missing
        return self._opened.pop()

    def close(self) -> None:
        for descriptor in self._opened:
            os.close(descriptor)

    def _climb(self) -> None:
        if self._below:
            self._below -= 1
        elif len(self._opened) == 1:
            raise _LeavingError
        else:
            os.close(self._opened.pop())

    def _enter(self, part: str) -> None:
        try:
            self._opened.append(open_entry(part, self._opened[-1]))
        except OSError as error:
            if error.errno in _MISSING:
                self._missing, self._below = self._missing or error, 1
            elif error.errno == errno.ELOOP and self._links < _MAX_LINKS:
                self._links += 1
                self._follow(os.readlink(part, dir_fd=self._opened[-1]))
            else:
                raise

    def _follow(self, text: str) -> None:
        if text.startswith("/"):
            raise _LeavingError
        self._waiting.extendleft(reversed(text.split("/")))


def open_entry(name: str, directory: int) -> int:
    """Return a descriptor of an entry of an open directory, for reading.

    Raises:
        OSError: It is a link (`ELOOP`), or cannot be opened.
    """
    return os.open(name, _FLAGS, dir_fd=directory)
