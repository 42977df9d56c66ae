"""A value made from files, and rebuilt when one of them has changed.

A call returns the value of the files as they are now, or raises; it never returns an outdated one.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

from localpuppet.base.machine.files import input_errors

T = TypeVar("T")


class ReloadedFiles(Generic[T]):
    """A value made from files.

    Args:
        files: The files; symlinks are followed.
        make: Builds the value; if it raises, the next call tries again.
    """

    def __init__(self, files: Iterable[Path], make: Callable[[], T]) -> None:
        self._files = tuple(files)
        self._make = make
        self._made: tuple[object, T] | None = None

    def __call__(self) -> T:
        """Return the value for the files as they are now.

        Raises:
            InvalidInputError: A file cannot be read; also what `make` raises.
        """
        stamp = tuple(_stamp(path) for path in self._files)
        if self._made is None or self._made[0] != stamp:
            self._made = stamp, self._make()
        return self._made[1]


def _stamp(path: Path) -> tuple[int, int, int]:
    with input_errors(path):
        status = path.stat()
    return status.st_ino, status.st_mtime_ns, status.st_size
