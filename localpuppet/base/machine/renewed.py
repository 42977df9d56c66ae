"""What is made from files, and made again when one of them has changed.

Owns: noticing it. Refuses to know: what is in them.

Invariant: what stands for the files as they are now is returned, or an error, and never what stood
for files that are gone.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

from localpuppet.base.errors import InvalidInputError

T = TypeVar("T")


class Renewed(Generic[T]):
    """Something made from files.

    Args:
        files: The files; symlinks are followed.
        make: Makes it; what it raises is tried again at the next call.
    """

    def __init__(self, files: Iterable[Path], make: Callable[[], T]) -> None:
        self._files = tuple(files)
        self._make = make
        self._made: tuple[object, T] | None = None

    def __call__(self) -> T:
        """Return it, of the files as they are now.

        Raises:
            InvalidInputError: A file cannot be looked at; besides, as `make` does.
        """
        stamp = tuple(_stamp(path) for path in self._files)
        if self._made is None or self._made[0] != stamp:
            self._made = stamp, self._make()
        return self._made[1]


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        status = path.stat()
    except OSError as error:
        raise InvalidInputError(f"cannot be read: {error.strerror}", where=str(path)) from error
    return status.st_ino, status.st_mtime_ns, status.st_size
