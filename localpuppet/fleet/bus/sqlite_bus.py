"""`KeyValue` over one SQLite file, for one machine without a server.

A ring is `utime(2)` on the file. It requires only write permission, produces no data and, unlike
opening and closing the file, keeps this process's locks on it.

A caller that reads `rings` before it reads the file, and then waits for a higher number, misses no
ring.

This module waits; `sqlite_file` touches the file. A write to a locked file tries again until
its deadline; a watcher sleeps until the doorbell rings. Calls to the file take well below a
millisecond (and one fsync for a write), so they run in the event loop's thread.

The bell rings after the commit, so a woken watcher finds the write. If a writer is killed between
the two, no bell rings: the slow look of the watchers finds the change. The slow look also removes
expired entries.
"""

import asyncio
import os
import shutil
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from inotify_simple import INotify, flags

from localpuppet.base.errors import UnavailableError
from localpuppet.fleet.bus import key_value
from localpuppet.fleet.bus.sqlite_file import LockedError, Position, SqliteFile

# Watch the directory: the watch survives that another file replaces this one.
_MASK = flags.ATTRIB | flags.CREATE | flags.MOVED_TO | flags.DELETE | flags.MOVE_SELF
# The directory was replaced or deleted, and may be created again.
_LOST = flags.MOVE_SELF | flags.IGNORED


class Doorbell:
    """The bell of one file, for use in the event loop that created it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._waiting: set[asyncio.Future[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._inotify = INotify(nonblocking=True)
        try:
            self._inotify.add_watch(path.parent, _MASK)
        except BaseException:
            self._inotify.close()
            raise
        self._watching = True
        self._loop.add_reader(self._inotify.fileno(), self._on_event)
        self.rings = 0

    def ring(self) -> None:
        """Wake all processes that wait for this file."""
        os.utime(self._path, follow_symlinks=False)  # another user may own the directory

    async def wait(self, rings: int, *, seconds: float) -> None:
        """Return when the bell has rung more than `rings` times, or after `seconds`."""
        if self.rings > rings or self._inotify.closed:
            return
        if not self._watching and self._watch_again():
            return  # it may have rung meanwhile
        waiting = self._loop.create_future()
        self._waiting.add(waiting)
        timer = self._loop.call_later(seconds, self._release, waiting)
        try:
            await waiting
        finally:
            timer.cancel()
            self._waiting.discard(waiting)

    def close(self) -> None:
        """Close the bell and wake all waiters."""
        if not self._inotify.closed:
            self._loop.remove_reader(self._inotify.fileno())
            self._inotify.close()
        self._wake()

    def _watch_again(self) -> bool:
        try:
            self._inotify.add_watch(self._path.parent, _MASK)
        except OSError:  # the directory does not exist yet
            return False
        self._watching = True
        return True

    def _on_event(self) -> None:
        name = self._path.name
        events = self._inotify.read(timeout=0)
        if any(event.mask & _LOST for event in events):
            self._watching = False
        # An overflow names no file: the missed event may concern this file.
        if any(event.name in (name, "") for event in events):
            self.rings += 1
            self._wake()

    def _wake(self) -> None:
        for waiting in self._waiting:
            self._release(waiting)

    @staticmethod
    def _release(waiting: "asyncio.Future[None]") -> None:
        if not waiting.done():
            waiting.set_result(None)


# Seconds between two looks of a watcher without a ring: each takes 0.1 ms.
SLOW_LOOK = 2.0
# Seconds between attempts on a locked file, the last one repeated: a commit takes about 1 ms.
_PAUSES = (0.001, 0.002, 0.005, 0.01, 0.02)

_Result = TypeVar("_Result")


async def open_sqlite(path: Path, *, timeout: float) -> "SqliteKeyValue":
    """Return the bus in a file.

    Raises:
        UnavailableError: The file cannot be used, or was locked for too long.
        InvalidInputError: Others can write its directory, or root would open another user's.
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


class SqliteKeyValue(key_value.KeyValue):
    """The bus in one file."""

    def __init__(self, file: SqliteFile, bell: Doorbell, *, timeout: float) -> None:
        super().__init__(timeout)
        self._file: SqliteFile | None = file
        self._path = file.path
        self._bell = bell

    async def _born(self, prefix: str) -> float:
        return await self._ask(lambda file: file.born())

    async def fullness(self) -> str:
        """See `KeyValue.fullness`: the disk counts."""
        free = shutil.disk_usage(self._path.parent).free
        return "" if free >= key_value.ROOM else f"the disk of {self._path} is full"

    async def _get(self, key: str) -> key_value.KeyValueEntry | None:
        return await self._ask(lambda file: file.get(key))

    async def _list(self, prefix: str, largest: int) -> key_value.KeyListing:
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

    async def _watch(
        self, prefix: str, how: key_value.WatchOptions
    ) -> AsyncGenerator[key_value.Change, None]:
        position = Position(
            after=-1 if how.after is None else how.after,  # no store has -1: it lists
            largest=how.largest,
            parts=how.parts,
        )
        await self._ask(lambda file: file.born())  # opens another file
        watched = self._file
        while True:
            rings = self._bell.rings
            at = position
            look = await self._ask(lambda file: file.look(prefix, at))  # noqa: B023 - awaited here
            if self._file is not watched:
                raise UnavailableError("was replaced by another file", where=str(self._path))
            for change in look.changes:
                yield change
            position = look.position
            if look.more:
                continue
            await self._bell.wait(rings, seconds=SLOW_LOOK)
            # Usually empty, and a cheap read. A watcher that finds something wakes the others.
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
            # Other processes do not see writes to a deleted file.
            fresh = SqliteFile(self._path)
            self._file.close()
            self._file = fresh
        return self._file

    def _ring(self) -> None:
        # The value is committed; without the bell, the slow look finds it.
        with suppress(OSError):
            self._bell.ring()


async def _patiently(step: Callable[[], _Result], path: Path, timeout: float) -> _Result:
    """Return the result of `step`; try again while another process has the file locked."""
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
