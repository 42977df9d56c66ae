"""A child that is supervised: its process group, its output, its cgroup.

Owns: what is the same for a child that we started and for one that a fork server made for us.

A child writes into an anonymous file in memory, not into a pipe: when we are killed, it goes on
writing into it and its run ends as it should, where a closed pipe would kill it in mid-catalog,
and a full disk cannot reach it either (ADR 4).
"""

import contextlib
import fcntl
import os
import signal
from collections.abc import Collection, Iterable
from typing import Protocol

from localpuppet.base.machine.cgroup import Cgroup
from localpuppet.base.machine.ports import Ended, ProcessId

CHUNK = 65536


class Signaller(Protocol):
    """Tells processes apart, waits, and signals: `base.machine.processes.SystemProcesses`."""

    def identify(self, pid: int) -> ProcessId:
        """Return the identity of a running process; `started` is 0 when it is gone."""
        ...

    def family(self, process: ProcessId) -> list[ProcessId]:
        """Return a process and everything below it that runs; nothing once it has ended."""
        ...

    def signal(self, processes: Iterable[ProcessId], number: int) -> None:
        """Signal those of some processes that still run; none is fine."""
        ...

    def sleep(self, seconds: float, *, watching: Collection[int] = ()) -> None:
        """Sleep until a signal comes, or there is something to read, at most `seconds`."""
        ...


class Group(Protocol):
    """A process group and its leader."""

    @property
    def pid(self) -> int:
        """Return the leader's number, which is the group's."""
        ...

    @property
    def watched(self) -> Collection[int]:
        """Return the descriptors that tell of the leader's end, where no signal does."""
        ...

    def poll(self) -> Ended | None:
        """Return how the leader ended, once it has."""
        ...

    def signal(self, number: int) -> None:
        """Signal every member of the group; none is fine."""
        ...

    def reap(self) -> None:
        """Forget an ended leader."""
        ...


def make_output(name: str) -> int:
    """Return a file in memory for a child's output."""
    output = os.memfd_create(f"{name}-output", os.MFD_CLOEXEC)
    # Appending, so that nothing is lost when the child's children reopen /dev/stdout.
    fcntl.fcntl(output, fcntl.F_SETFL, os.O_APPEND)
    return output


class OwnGroup:
    """A child that leads its own process group.

    It is reaped last of all: until then its pid, and so its group's id, cannot be somebody else's.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.watched: tuple[int, ...] = ()  # SIGCHLD tells
        self.ended: Ended | None = None

    def poll(self, *, block: bool = False) -> Ended | None:
        """Return how the leader ended; `None` while it goes on, where we do not wait for that."""
        if self.ended is None:
            options = os.WEXITED | os.WNOWAIT | (0 if block else os.WNOHANG)
            result = os.waitid(os.P_PID, self.pid, options)
            if result:
                by_exit = result.si_code == os.CLD_EXITED
                self.ended = Ended(
                    code=result.si_status if by_exit else None,
                    signal=None if by_exit else result.si_status,
                )
        return self.ended

    def signal(self, number: int) -> None:
        """Signal every member of the group; none is fine."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, number)

    def reap(self) -> None:
        """Forget an ended leader."""
        if self.ended is not None:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)


class SystemChild:
    """A started Puppet, its output and its cgroup; see `base.machine.ports.Child`.

    Args:
        processes: Tells processes apart.
        group: Puppet's process group.
        output: The file in memory that Puppet writes into; ours to close.
        cgroup: Where Puppet is put; `None` where the kernel or our rights do not allow that.
    """

    def __init__(
        self, processes: "Signaller", group: Group, output: int, cgroup: Cgroup | None
    ) -> None:
        self._processes = processes
        self._group = group
        self.output = output
        self._position = 0
        self._freed = 0
        self._cgroup = cgroup
        self._family: set[ProcessId] = set()
        self.identity = processes.identify(group.pid)
        if cgroup:
            cgroup.add(group.pid)

    def wait(self, seconds: float) -> Ended | None:
        """Return how it ended, or `None` when it goes on."""
        if self._group.poll() is None:
            self._processes.sleep(seconds, watching=self._group.watched)
        return self._group.poll()

    def read(self) -> bytes:
        """Return what it has written since the last call."""
        size = os.fstat(self.output).st_size
        if size < self._position:  # a grandchild opened /dev/stdout and emptied it
            self._position = self._freed = 0
        data = os.pread(self.output, CHUNK, self._position)
        self._position += len(data)
        self._release_memory()
        return data

    def _release_memory(self) -> None:
        if self._position - self._freed > 4 * 1024 * 1024:
            _free(self.output, self._freed, self._position - self._freed)
            self._freed = self._position

    def skip(self) -> None:
        """Take everything that was written as read."""
        self._position = os.fstat(self.output).st_size
        self._release_memory()

    def end(self, *, kill: bool) -> None:
        """Ask it and everything it started to end (TERM), or kill it (KILL)."""
        # Puppet gives each command a session of its own, which a signal to our group does not
        # reach; and when Puppet is gone, nothing says any more that they were its children.
        self._family.update(self._processes.family(self.identity))
        self._group.signal(signal.SIGKILL if kill else signal.SIGTERM)
        if kill and self._cgroup:
            self._cgroup.kill()
        if kill:
            self._processes.signal(self._family, signal.SIGKILL)

    def release(self) -> None:
        """Free what was held for it."""
        self._group.reap()
        os.close(self.output)
        if self._cgroup:
            self._cgroup.remove()


def _free(fd: int, start: int, length: int) -> None:
    """Give back the memory of what was read; Python has no binding for it."""
    import ctypes

    keep_size, punch_hole = 1, 2
    ctypes.CDLL(None, use_errno=True).fallocate(
        fd, keep_size | punch_hole, ctypes.c_int64(start), ctypes.c_int64(length)
    )
