"""A doorbell between processes on one machine: inotify on the time stamps of one file.

Owns: one inotify descriptor that watches the file's directory, and who waits for it. Refuses to
know: what a ring means. A ring is `utime(2)` on the file: it needs no right but to write it, makes
no data, and (unlike opening and closing it) leaves the locks alone that this process holds on it.

Invariant: who notes `rings` before looking, and then waits for more than those, misses no ring.
"""

import asyncio
import os
from pathlib import Path

from inotify_simple import INotify, flags

# Directory events: the watch outlives a file that is replaced by another one of the same name.
_MASK = flags.ATTRIB | flags.CREATE | flags.MOVED_TO | flags.DELETE | flags.MOVE_SELF
# The directory is another one now, or will be when somebody makes it again.
_LOST = flags.MOVE_SELF | flags.IGNORED


class Doorbell:
    """The bell of one file; belongs to the event loop that it was made in.

    Args:
        path: The file; its directory must be there.

    Raises:
        OSError: The kernel gives no more inotify descriptors, or the directory is not there.
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
        self._loop.add_reader(self._inotify.fileno(), self._heard)
        self.rings = 0

    def ring(self) -> None:
        """Wake everybody who waits for this file, in all processes.

        Raises:
            OSError: The file is not there, or not ours to write.
        """
        os.utime(self._path, follow_symlinks=False)  # the directory may be another user's

    async def wait(self, rings: int, *, seconds: float) -> None:
        """Return when it has rung more than `rings` times, or after `seconds`."""
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
        """Take it down; who waits is let go."""
        if not self._inotify.closed:
            self._loop.remove_reader(self._inotify.fileno())
            self._inotify.close()
        self._wake()

    def _watch_again(self) -> bool:
        try:
            self._inotify.add_watch(self._path.parent, _MASK)
        except OSError:  # nobody has made it again yet
            return False
        self._watching = True
        return True

    def _heard(self) -> None:
        name = self._path.name
        events = self._inotify.read(timeout=0)
        if any(event.mask & _LOST for event in events):
            self._watching = False
        # An overflow names no file: something was missed, so it may have been ours.
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
