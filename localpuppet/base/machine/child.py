"""A supervised child: its process group, its output, its cgroup.

Shared by children that localpuppet started and those that a fork server made.

A child writes into an anonymous file in memory, not into a pipe. If localpuppet is killed, the
child continues to write and finishes its run; a closed pipe would kill it in mid-catalog. A full
disk does not affect it either (ADR 4).
"""

import contextlib
import fcntl
import os
import signal
from collections.abc import Collection
from typing import Protocol

from localpuppet.base.machine.cgroup import Cgroup
from localpuppet.base.machine.ports import ProcessEnd, ProcessId, ProcessTable

CHUNK = 65536


class Signaller(ProcessTable, Protocol):
    """Identifies, signals and waits for processes: `base.machine.processes.SystemProcesses`."""

    def identify(self, pid: int) -> ProcessId:
        """Return the identity of a running process; `started` is 0 if it has ended."""

    def sleep(self, seconds: float, *, watching: Collection[int] = ()) -> None:
        """Sleep until a signal arrives or a descriptor is readable, at most `seconds`."""


class ProcessGroup(Protocol):
    """A process group and its leader."""

    @property
    def pid(self) -> int:
        """Return the leader's pid, which is the group's id."""

    @property
    def watched(self) -> Collection[int]:
        """Return the descriptors that become readable when the leader ends without SIGCHLD."""

    def poll(self) -> ProcessEnd | None:
        """Return how the leader ended; `None` while it runs."""

    def signal(self, number: int) -> None:
        """Signal every member of the group; an empty group is fine."""

    def reap(self) -> None:
        """Forget an ended leader."""


def make_output(name: str) -> int:
    """Return an anonymous file in memory for a child's output."""
    output = os.memfd_create(f"{name}-output", os.MFD_CLOEXEC)
    # O_APPEND: nothing is lost if the child's children reopen /dev/stdout.
    fcntl.fcntl(output, fcntl.F_SETFL, os.O_APPEND)
    return output


def signal_group(group: int, number: int) -> None:
    """Signal every member of a process group; an empty group is fine."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


class OwnGroup:
    """A child that leads its own process group.

    It is reaped last: until then, its pid and so its group's id cannot be reused.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.watched: tuple[int, ...] = ()  # SIGCHLD arrives
        self.ended: ProcessEnd | None = None

    def poll(self, *, block: bool = False) -> ProcessEnd | None:
        """Return how the leader ended; `None` while it runs, unless `block` waits for the end."""
        if self.ended is None:
            options = os.WEXITED | os.WNOWAIT | (0 if block else os.WNOHANG)
            result = os.waitid(os.P_PID, self.pid, options)
            if result:
                by_exit = result.si_code == os.CLD_EXITED
                self.ended = ProcessEnd(
                    code=result.si_status if by_exit else None,
                    signal=None if by_exit else result.si_status,
                )
        return self.ended

    def signal(self, number: int) -> None:
        """Signal every member of the group; an empty group is fine."""
        with contextlib.suppress(PermissionError):
            signal_group(self.pid, number)

    def reap(self) -> None:
        """Forget an ended leader."""
        if self.ended is not None:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.pid, os.WNOHANG)


class SystemChild:
    """A started Puppet, its output and its cgroup; see `base.machine.ports.Child`.

    Args:
        processes: Identifies and signals processes.
        group: Puppet's process group.
        output: The file in memory that Puppet writes to; `release` closes it.
        cgroup: Puppet's cgroup; `None` if the kernel or localpuppet's rights do not allow one.
    """

    def __init__(
        self, processes: "Signaller", group: ProcessGroup, output: int, cgroup: Cgroup | None
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

    def wait(self, seconds: float) -> ProcessEnd | None:
        """Return how the child ended; `None` if it still runs."""
        if self._group.poll() is None:
            self._processes.sleep(seconds, watching=self._group.watched)
        return self._group.poll()

    def read(self) -> bytes:
        """Return what the child has written since the last call."""
        size = os.fstat(self.output).st_size
        if size < self._position:  # a grandchild truncated /dev/stdout
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
        """Skip all output written so far."""
        self._position = os.fstat(self.output).st_size
        self._release_memory()

    def end(self, *, kill: bool) -> None:
        """Terminate the child and its descendants with TERM, or with KILL."""
        # Puppet runs each command in a separate session, out of reach of signals to the group. Once
        # Puppet has ended, nothing identifies those commands as its children any more.
        self._family.update(self._processes.family(self.identity))
        self._group.signal(signal.SIGKILL if kill else signal.SIGTERM)
        if kill and self._cgroup:
            self._cgroup.kill()
        if kill:
            self._processes.signal(self._family, signal.SIGKILL)

    def release(self) -> None:
        """Reap the child and free its output and cgroup."""
        self._group.reap()
        os.close(self.output)
        if self._cgroup:
            self._cgroup.remove()


def _free(fd: int, start: int, length: int) -> None:
    """Free the memory of output that was read; Python has no binding for fallocate(2)."""
    import ctypes

    keep_size, punch_hole = 1, 2
    ctypes.CDLL(None, use_errno=True).fallocate(
        fd, keep_size | punch_hole, ctypes.c_int64(start), ctypes.c_int64(length)
    )
