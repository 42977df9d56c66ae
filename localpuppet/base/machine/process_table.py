"""The running processes of this machine (Linux), its clocks, and its present boot."""

import contextlib
import os
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from localpuppet.base.machine.ports import ProcessId, RunningProcess


def seconds_since_boot() -> float:
    """Return seconds from a monotonic clock that also counts while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Return the kernel's id of the present boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()


class SystemClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        """Return the time of day in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds from a clock that never goes back."""
        return time.monotonic()


class SystemProcessTable:
    """The running processes of this machine; see `base.machine.ports.ProcessTable`."""

    def me(self) -> ProcessId:
        return self.identify(os.getpid())

    def identify(self, pid: int) -> ProcessId:
        """Return the identity of a running process; `started` is 0 if it has ended."""
        return ProcessId(pid=pid, boot_id=boot_id(), started=_started(pid))

    def alive(self, process: ProcessId) -> bool:
        """Return whether this very process still runs."""
        return process.started > 0 and self.identify(process.pid) == process

    def family(self, process: ProcessId) -> list[ProcessId]:
        """Return a process and its running descendants; nothing once it has ended."""
        if not self.alive(process):
            return []
        processes = [process, *(self.identify(pid) for pid in _descendants(process.pid))]
        return [item for item in processes if item.started]

    def signal(self, processes: Iterable[ProcessId], number: int) -> None:
        """Signal those of the processes that still run."""
        for process in processes:
            if self.alive(process):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, number)

    def look_up(self, pid: int) -> RunningProcess | None:
        """Return what the kernel says about a running process; `None` if it has ended."""
        try:
            name = Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").strip()
            data = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return None
        started = _started(pid)
        if not started:
            return None
        age = seconds_since_boot() - started / os.sysconf("SC_CLK_TCK")
        return RunningProcess(
            name=name,
            words=data.decode("utf-8", "replace").split("\0")[:-1],
            started_at=time.time() - age,
        )


def _descendants(root: int) -> list[int]:
    """Return the descendants of `root`, read from /proc."""
    parents: dict[int, list[int]] = {}
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            fields = _stat(int(entry.name))
            if fields:
                parents.setdefault(int(fields[1]), []).append(int(entry.name))
    descendants: list[int] = []
    pending = [root]
    while pending:
        children = parents.get(pending.pop(), [])
        descendants += children
        pending += children
    return descendants


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; empty if the process has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return []
    # The command in parentheses may contain spaces and parentheses.
    return text.rpartition(")")[2].split()


def _started(pid: int) -> int:
    """Return the start time of `pid` in ticks since boot; 0 if it has ended or is a zombie."""
    fields = _stat(pid)
    return 0 if not fields or fields[0] in ("Z", "X") else int(fields[19])
