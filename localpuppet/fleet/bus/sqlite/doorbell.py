"""A doorbell between processes on one machine: inotify on the time stamps of one file.

A ring is `utime(2)` on the file. It requires only write permission, produces no data and, unlike
opening and closing the file, keeps this process's locks on it.

A caller that reads `rings` before it reads the file, and then waits for a higher number, misses no
ring.
"""

import asyncio
import os
from pathlib import Path

from inotify_simple import INotify, flags

# Watch the directory: the watch survives that another file replaces this one.
_MASK = flags.ATTRIB | flags.CREATE | flags.MOVED_TO | flags.DELETE | flags.MOVE_SELF
# The directory was replaced or deleted, and may be created again.
_LOST = flags.MOVE_SELF | flags.IGNORED


class Doorbell:
    """The bell of one file, for use in the event loop that created it.

    Args:
        path: The file; its directory must exist.

    Raises:
        OSError: The kernel has no inotify descriptor left, or the directory does not exist.
    """

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
        """Wake all processes that wait for this file.

        Raises:
            OSError: The file does not exist, or is not writable.
        """
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
