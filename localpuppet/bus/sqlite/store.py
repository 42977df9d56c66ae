"""The bus on one machine: `KeyValue` over one SQLite file, with no server.

Owns: waiting. A write that finds the file locked by another process tries again until its
deadline; a watcher sleeps until the doorbell rings. Everything that touches the file is
`bus.sqlite.file`'s, takes well below a millisecond (and one fsync, for a write), and is therefore
called in the event loop's own thread.

Invariants: the bell is rung after the commit, so who wakes finds what was written. A writer that
is killed between the two leaves a change that nobody was told of: that is what the slow look of
watchers is for, and it is all that it is for, but that it also says what has expired.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from localpuppet.bus.key_value import Change, Entry, Listing, check_key, check_prefix, check_value
from localpuppet.bus.sqlite.doorbell import Doorbell
from localpuppet.bus.sqlite.file import LockedError, SqliteFile
from localpuppet.errors import UnavailableError

# Seconds between looks of a watcher that nobody wakes: 0.1 ms of work each.
SLOW_LOOK = 2.0
# Seconds before a locked file is tried again, the last one for ever: a commit takes about 1 ms.
_PAUSES = (0.001, 0.002, 0.005, 0.01, 0.02)

_Result = TypeVar("_Result")


async def open_sqlite(path: Path, *, timeout: float) -> "SqliteKeyValue":
    """Return the bus in a file, which is made if it is not there.

    Args:
        path: The file. Its directory is made, private, if it is not there.
        timeout: The deadline of each call in seconds.

    Raises:
        UnavailableError: It is damaged, no database of ours, read-only, or locked for too long.
        InvalidInputError: Others can write its directory.
    """
    file = await _patiently(lambda: SqliteFile(path), path, timeout)
    try:
        bell = Doorbell(path)
    except OSError as error:
        file.close()
        raise UnavailableError(
            f"cannot be watched: {error.strerror}",
            where=str(path),
            hint="see fs.inotify.max_user_instances",
        ) from error
    return SqliteKeyValue(file, bell, timeout=timeout)


class SqliteKeyValue:
    """A `KeyValue`; see there for what the methods promise.

    Args:
        file: The open file.
        bell: The bell of the same path.
        timeout: The deadline of each call in seconds.
    """

    def __init__(self, file: SqliteFile, bell: Doorbell, *, timeout: float) -> None:
        self._file: SqliteFile | None = file
        self._path = file.path
        self._bell = bell
        self._timeout = timeout

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return nothing: there is no server that could be weak."""
        return ()

    async def get(self, key: str) -> Entry | None:
        """Return the newest value of a key; `None` when there is none.

        Raises:
            UnavailableError: The file cannot be used, or was locked for too long.
            InvalidInputError: It is no key.
        """
        check_key(key)
        return await self._ask(lambda file: file.get(key))

    async def list(self, prefix: str) -> Listing:
        """Return all that is below a prefix, at one revision.

        Raises:
            UnavailableError: The file cannot be used, or was locked for too long.
            InvalidInputError: It is no prefix.
        """
        check_prefix(prefix)
        return await self._ask(lambda file: file.list(prefix))

    async def put(self, key: str, value: bytes, *, ttl: float | None = None) -> int:
        """Write a value, whatever was there; return its revision.

        Raises:
            UnavailableError: The file cannot be used, or was locked for too long.
            InvalidInputError: It is no key, or the value is too large.
        """
        revision = await self._write(key, value, ttl, None)
        if revision is None:
            raise AssertionError("a write without a condition cannot lose")
        return revision

    async def add_if_new(self, key: str, value: bytes, *, ttl: float | None = None) -> int | None:
        """Write a value if the key is not there; return its revision, `None` if it is there.

        Raises:
            UnavailableError: The file cannot be used, or was locked for too long.
            InvalidInputError: It is no key, or the value is too large.
        """
        return await self._write(key, value, ttl, 0)

    async def set_if_revision(
        self, key: str, value: bytes, revision: int, *, ttl: float | None = None
    ) -> int | None:
        """Write a value if the key still has that revision; `None` if it does not.

        Raises:
            UnavailableError: The file cannot be used, or was locked for too long.
            InvalidInputError: It is no key, or the value is too large.
        """
        return await self._write(key, value, ttl, revision) if revision > 0 else None

    async def remove_if_revision(self, key: str, revision: int) -> bool:
        """Remove a key if it still has that revision; return whether it had.

        Raises:
            UnavailableError: The file cannot be used, or was locked for too long.
            InvalidInputError: It is no key.
        """
        check_key(key)
        removed = revision > 0 and await self._ask(lambda file: file.remove(key, revision))
        if removed:
            self._ring()
        return removed

    async def watch(self, prefix: str, *, after: int | None = None) -> AsyncGenerator[Change, None]:
        """Follow all that happens below a prefix, without an end; see `KeyValue.watch`.

        Raises:
            UnavailableError: The file cannot be used, or was locked for too long.
            InvalidInputError: It is no prefix.
        """
        check_prefix(prefix)
        seen = -1 if after is None else after  # no store has that revision: it lists
        while True:
            rings = self._bell.rings
            at = seen
            look = await self._ask(lambda file: file.look(prefix, at))  # noqa: B023 - awaited here
            for change in look.changes:
                yield change
            seen = look.revision
            if look.more:
                continue
            await self._bell.wait(rings, seconds=SLOW_LOOK)
            # Usually nothing: a cheap read. Who does find something tells all the others.
            if self._bell.rings == rings and await self._ask(lambda file: file.prune()):
                self._ring()

    async def close(self) -> None:
        """Close the file; watchers and all later calls raise."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._bell.close()

    async def _write(
        self, key: str, value: bytes, ttl: float | None, expected: int | None
    ) -> int | None:
        check_key(key)
        check_value(value, ttl)
        revision = await self._ask(lambda file: file.write(key, value, ttl=ttl, expected=expected))
        if revision is not None:
            self._ring()
        return revision

    async def _ask(self, step: Callable[[SqliteFile], _Result]) -> _Result:
        return await _patiently(lambda: step(self._opened()), self._path, self._timeout)

    def _opened(self) -> SqliteFile:
        if self._file is None:
            raise UnavailableError("is closed", where=str(self._path))
        if self._file.replaced():
            # Whoever writes into a file that was removed writes for nobody.
            fresh = SqliteFile(self._path)
            self._file.close()
            self._file = fresh
        return self._file

    def _ring(self) -> None:
        # The value is committed; who hears no bell finds it at the slow look.
        with suppress(OSError):
            self._bell.ring()


async def _patiently(step: Callable[[], _Result], path: Path, timeout: float) -> _Result:
    """Return what `step` returns, trying again while another process has the file locked."""
    deadline = time.monotonic() + timeout
    tries = 0
    while True:
        try:
            return step()
        except LockedError as error:
            if time.monotonic() >= deadline:
                raise UnavailableError(
                    f"was locked by another process for {timeout:g} s", where=str(path)
                ) from error
        await asyncio.sleep(_PAUSES[min(tries, len(_PAUSES) - 1)])
        tries += 1
