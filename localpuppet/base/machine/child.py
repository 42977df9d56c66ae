"""A supervised child: its process group, its output, its cgroup.

- localpuppet started the child itself (`OwnGroup`), or a fork server made it.
- The cgroup of a run's Puppet (version 2) contains processes that left Puppet's process group. If
  no cgroup exists (no cgroup2, not delegated, not root), localpuppet uses the process group alone.
- A child writes into an anonymous file in memory, not into a pipe. If localpuppet is killed, the
  child continues to write and finishes its run; a closed pipe would kill it in mid-catalog. A full
  disk does not affect it either (ADR 4).
- Whatever a command writes to an `OutputPipe`, localpuppet holds at most `limit` + 1 bytes of it,
  and the kernel a pipe buffer.
"""

import contextlib
import fcntl
import os
import secrets
import signal
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Protocol

from localpuppet.base.machine.ports import ProcessEnd, ProcessId, ProcessTable

# Controller → its files, of version 2 and of version 1 → how often the limit. Swap is memory.
_FILES: Mapping[str, Mapping[str, int]] = {
    "memory": {
        "memory.max": 1,
        "memory.swap.max": 0,
        "memory.limit_in_bytes": 1,
        "memory.memsw.limit_in_bytes": 1,
    },
    "pids": {"pids.max": 1},
}
_LIMITED = "localpuppet-isolated-"  # then the number of the process that made it
_PATIENCE = 2.0  # seconds until killed members are gone


class Cgroup:
    """The cgroup of one run, or of one isolated program."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @classmethod
    def make(cls, name: str) -> "Cgroup | None":
        """Return a new group `name` below localpuppet's own; `None` if that is not allowed."""
        parent = _own_group()
        if parent is None:
            return None
        try:
            (parent / name).mkdir()
        except OSError:
            return None
        return cls(parent / name)

    @classmethod
    def limited(cls, limits: Mapping[str, int]) -> "list[Cgroup]":
        """Return new groups that limit their members in total; remove those of killed processes.

        Args:
            limits: Controller (`memory`, `pids`) → limit; one that localpuppet may not set is left
                out.
        """
        groups: dict[Path, Cgroup] = {}
        name = f"{_LIMITED}{os.getpid()}-{secrets.token_hex(4)}"
        for controller, limit in limits.items():
            parent = _own_group(controller) or _own_group()
            if parent is None:
                continue
            with contextlib.suppress(OSError):
                (parent / "cgroup.subtree_control").write_text(f"+{controller}")
            for old in parent.glob(f"{_LIMITED}*"):
                if not Path("/proc", old.name.split("-")[2]).exists():
                    with contextlib.suppress(OSError):
                        old.rmdir()
            path = parent / name
            with contextlib.suppress(OSError):
                path.mkdir(exist_ok=True)
                for file, times in _FILES[controller].items():
                    if (path / file).exists():
                        (path / file).write_text(str(times * limit))
                groups[path] = cls(path)
        return list(groups.values())

    @property
    def processes(self) -> Path:
        """The file in which a process writes its number to join."""
        return self._path / "cgroup.procs"

    def add(self, pid: int) -> None:
        """Add a process; one that has ended is ignored."""
        with contextlib.suppress(OSError):
            (self._path / "cgroup.procs").write_text(str(pid))

    def kill(self) -> None:
        """Kill every member (`child.kill` since Linux 5.14, one by one before)."""
        try:
            (self._path / "cgroup.kill").write_text("1")
        except OSError:
            with contextlib.suppress(OSError):
                for pid in (self._path / "cgroup.procs").read_text().split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)

    def remove(self) -> None:
        """Remove the group; members that a run left on purpose (a daemon) move to the parent."""
        deadline = time.monotonic() + _PATIENCE
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError):
                procs = self._path.parent / "cgroup.procs"
                for pid in self.processes.read_text().split():
                    with contextlib.suppress(OSError):
                        procs.write_text(pid)
                self._path.rmdir()
            if not self._path.exists():
                return
            time.sleep(0.01)  # members that were killed are members until they have ended


def _own_group(controller: str = "") -> Path | None:
    """Return localpuppet's own cgroup directory; `controller` is one of version 1, or empty."""
    try:
        own = Path("/proc/self/cgroup").read_text("utf-8")
        mounts = Path("/proc/self/mountinfo").read_text("utf-8")
    except OSError:
        return None
    groups = [line.split(":", 2) for line in own.splitlines()]
    name = next((path for _, names, path in groups if controller in names.split(",")), None)
    kind = "cgroup" if controller else "cgroup2"
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        system, _, options = after.split(" ", 2)
        if name is None or system != kind or controller not in ["", *options.split(",")]:
            continue
        top, place = before.split(" ")[3:5]
        return Path(place, os.path.relpath(name, top))
    return None


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
    """A started Puppet: see `base.machine.ports.Child`. `release` closes `output`, in memory."""

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


OUTPUT_PIPE_CHUNK = 65536


class OutputPipe:
    """One output stream of a command: at most `limit` bytes, and one that shows an overflow."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept = bytearray()
        self._reader, self._writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._reader, False)
        self.ended = False

    @property
    def fd(self) -> int:
        """The descriptor that the command writes to."""
        return self._writer

    def fileno(self) -> int:
        """Return the descriptor for `select`."""
        return self._reader

    @property
    def flooded(self) -> bool:
        """Whether the output exceeded the limit."""
        return len(self._kept) > self._limit

    @property
    def data(self) -> bytes:
        """The bytes kept: the beginning."""
        return bytes(self._kept)

    def started(self) -> None:
        """Close the command's end, once the command has it."""
        os.close(self._writer)
        self._writer = -1

    def read(self) -> bool:
        """Read at most one chunk; return whether there was any."""
        try:
            chunk = os.read(self._reader, OUTPUT_PIPE_CHUNK)
        except BlockingIOError:
            return False
        self._kept += chunk[: self._limit + 1 - len(self._kept)]
        self.ended = not chunk
        return bool(chunk)

    def drain(self) -> None:
        """Read what a command left in the pipe, up to the limit: a survivor may write for ever."""
        while not self.flooded and self.read():
            pass

    def close(self) -> None:
        """Close both ends."""
        os.close(self._reader)
        if self._writer >= 0:
            os.close(self._writer)
