"""A version 2 cgroup for one run, below localpuppet's own.

It contains processes that left Puppet's process group. If there is no cgroup (no cgroup2, not
delegated, not root), localpuppet uses the process group alone.
"""

import contextlib
import os
import signal
from pathlib import Path


class Cgroup:
    """The cgroup of one run."""

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

    def add(self, pid: int) -> None:
        """Add a process; one that has ended is ignored."""
        with contextlib.suppress(OSError):
            (self._path / "cgroup.procs").write_text(str(pid))

    def kill(self) -> None:
        """Kill every member (`cgroup.kill` since Linux 5.14, one by one before)."""
        try:
            (self._path / "cgroup.kill").write_text("1")
        except OSError:
            with contextlib.suppress(OSError):
                for pid in (self._path / "cgroup.procs").read_text().split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)

    def remove(self) -> None:
        """Remove the group; members that a run left on purpose (a daemon) move to the parent."""
        with contextlib.suppress(OSError):
            procs = self._path.parent / "cgroup.procs"
            for pid in (self._path / "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):
                    procs.write_text(pid)
            self._path.rmdir()


def _own_group() -> Path | None:
    """Return the directory of localpuppet's own cgroup."""
    try:
        own = Path("/proc/self/cgroup").read_text("utf-8")
        mounts = Path("/proc/self/mountinfo").read_text("utf-8")
    except OSError:
        return None
    name = next((line[3:] for line in own.splitlines() if line.startswith("0::")), None)
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        if after.startswith("cgroup2 ") and name is not None:
            return Path(before.split(" ")[4]) / name.lstrip("/")
    return None
