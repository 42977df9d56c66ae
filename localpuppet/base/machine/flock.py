"""Mutual exclusion on one machine.

A lock lasts while any process has its descriptor; a crashed process needs no clean-up.
"""

import fcntl
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from localpuppet.base.errors import BusyError
from localpuppet.base.machine.files import disk_errors, make_private, state_problem

# Seconds between two attempts to take a lock.
LOOK = 0.05


class Flock:
    """A lock by `flock(2)` on a file that stays.

    The lock is bound to the open file: a child that inherits the descriptor keeps the lock after
    localpuppet dies.
    """

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.fd = fd

    @classmethod
    def take(cls, path: Path, *, shared: bool = False) -> "Flock | None":
        """Return the lock; `None` if another process has it."""
        with disk_errors(path):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
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
        """Wait for the lock and return it; `None` if another process has it for longer.

        Args:
            waits: Called once before waiting; not called if the lock is free.
        """
        lock = cls.take(path)
        if lock is not None:
            return lock
        waits()
        deadline = time.monotonic() + seconds
        while (lock := cls.take(path)) is None and time.monotonic() < deadline:
            time.sleep(LOOK)
        return lock

    @classmethod
    def need(
        cls,
        path: Path,
        problem: str,
        *,
        hint: str = "",
        seconds: float = 0.0,
        waits: Callable[[], None] = lambda: None,
    ) -> "Flock":
        """Create the directory of a lock, wait for the lock and return it; see `wait`.

        Raises:
            BusyError: Another process has it for longer; `problem` and `hint` say what it does.
        """
        make_private(path.parent)
        lock = cls.wait(path, seconds=seconds, waits=waits)
        if lock is None:
            raise BusyError(problem, where=str(path), hint=hint)
        return lock

    def __enter__(self) -> "Flock":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def say(self, value: object) -> None:
        """Write the lock's owner into its file; not durable, as a crash releases the lock."""
        data = b"" if value is None else json.dumps(value).encode()
        with disk_errors(self.path):
            os.pwrite(self.fd, data, 0)
            os.ftruncate(self.fd, len(data))

    def release(self) -> None:
        """Release the lock, also for processes that inherited it; repeated calls are fine."""
        if self.fd < 0:
            return
        fcntl.flock(self.fd, fcntl.LOCK_UN)
        os.close(self.fd)
        self.fd = -1


def is_locked(path: Path) -> bool:
    """Return whether a process holds the lock on a file; `False` if the file is missing."""
    if not path.exists():
        return False
    lock = Flock.take(path)
    if lock is None:
        return True
    lock.release()
    return False
