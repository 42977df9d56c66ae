"""Cgroups below localpuppet's own: one for a run, and those that limit code of strangers.

That of a run is of version 2. It contains processes that left Puppet's process group. If there is
no cgroup (no cgroup2, not delegated, not root), localpuppet uses the process group alone.
"""

import contextlib
import os
import secrets
import signal
import time
from collections.abc import Mapping
from pathlib import Path

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
    """Return the directory of localpuppet's own cgroup.

    Args:
        controller: One of version 1; empty for version 2.
    """
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
