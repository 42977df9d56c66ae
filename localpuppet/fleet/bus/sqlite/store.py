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

from localpuppet.base.errors import UnavailableError
from localpuppet.fleet.bus.checked_store import CheckedStore, Following
from localpuppet.fleet.bus.key_value import Change, Entry, Listing
from localpuppet.fleet.bus.sqlite.doorbell import Doorbell
from localpuppet.fleet.bus.sqlite.file import LockedError, SqliteFile
from localpuppet.fleet.bus.sqlite.position import Position

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
        InvalidInputError: Others can write its directory, or root is to open another user's.
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


class SqliteKeyValue(CheckedStore):
    """The bus in one file.

    Args:
        file: The open file.
        bell: The bell of the same path.
        timeout: The deadline of each call in seconds.
    """

    def __init__(self, file: SqliteFile, bell: Doorbell, *, timeout: float) -> None:
        super().__init__(timeout)
        self._file: SqliteFile | None = file
        self._path = file.path
        self._bell = bell

    async def _get(self, key: str) -> Entry | None:
        return await self._ask(lambda file: file.get(key))

    async def _list(self, prefix: str, largest: int) -> Listing:
        return await self._ask(lambda file: file.list(prefix, largest))

    async def _write(
        self, key: str, value: bytes, ttl: float | None, expected: int | None
    ) -> int | None:
        revision = await self._ask(lambda file: file.write(key, value, ttl=ttl, expected=expected))
        if revision is not None:
            self._ring()
        return revision

    async def _remove(self, key: str, revision: int) -> bool:
        removed = await self._ask(lambda file: file.remove(key, revision))
        if removed:
            self._ring()
        return removed

    async def _watch(self, prefix: str, how: Following) -> AsyncGenerator[Change, None]:
        position = Position(
            after=-1 if how.after is None else how.after,  # no store has that revision: it lists
            largest=how.largest,
            parts=how.parts,
        )
        while True:
            rings = self._bell.rings
            at = position
            look = await self._ask(lambda file: file.look(prefix, at))  # noqa: B023 - awaited here
            for change in look.changes:
                yield change
            position = look.position
            if look.more:
                continue
            await self._bell.wait(rings, seconds=SLOW_LOOK)
            # Usually nothing: a cheap read. Who does find something tells all the others.
            if self._bell.rings == rings and await self._ask(lambda file: file.prune()):
                self._ring()

    async def close(self) -> None:
        """Close the file; see `KeyValue.close`."""
        if self._file is not None:
            self._file.close()
            self._file = None
        self._bell.close()

    async def _ask(self, step: Callable[[SqliteFile], _Result]) -> _Result:
        return await _patiently(lambda: step(self._opened()), self._path, self.timeout)

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
