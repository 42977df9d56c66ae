"""Mutual exclusion on one machine.

Invariant: a lock lasts as long as any process has its descriptor; nobody has to clean up after a
process that died.
"""

import fcntl
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from localpuppet.base.machine.files import state_problem

# Seconds between two looks whether a lock is free.
LOOK = 0.05


class Flock:
    """Mutual exclusion on one machine by `flock(2)` on a file that stays.

    The lock belongs to the open file: a child that inherits the descriptor keeps it when we die.
    """

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.fd = fd

    @classmethod
    def take(cls, path: Path, *, shared: bool = False) -> "Flock | None":
        """Return the lock, or `None` when somebody has it.

        Args:
            path: The file; made when it is not there.
            shared: Take it together with others who share it.
        """
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise state_problem(error, path) from error
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return None
        except OSError as error:
            os.close(fd)
            raise state_problem(error, path) from error
        return cls(path, fd)

    @classmethod
    def wait(cls, path: Path, *, seconds: float, waits: Callable[[], None]) -> "Flock | None":
        """Return the lock, if need be after a while, or `None` when somebody has it for longer.

        Args:
            path: The file; made when it is not there.
            seconds: For how long to wait.
            waits: Called once before that; not at all where the lock is free.
        """
        lock = cls.take(path)
        if lock is not None:
            return lock
        waits()
        deadline = time.monotonic() + seconds
        while (lock := cls.take(path)) is None and time.monotonic() < deadline:
            time.sleep(LOOK)
        return lock

    def say(self, value: object) -> None:
        """Write who has the lock into its file (not durable: it means nothing after a crash)."""
        data = b"" if value is None else json.dumps(value).encode()
        try:
            os.pwrite(self.fd, data, 0)
            os.ftruncate(self.fd, len(data))
        except OSError as error:
            raise state_problem(error, self.path) from error

    def release(self) -> None:
        """Give it up, also for those who inherited it; what was given up before stays so."""
        if self.fd < 0:
            return
        fcntl.flock(self.fd, fcntl.LOCK_UN)
        os.close(self.fd)
        self.fd = -1


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock on a file; `False` if there is no file."""
    if not path.exists():
        return False
    lock = Flock.take(path)
    if lock is None:
        return True
    lock.release()
    return False
