"""Puppet's own run lock `agent_catalog_run_lockfile`, which `puppet apply` ignores.

localpuppet respects the lock and takes it. The file has a pid. A lock is stale by Puppet's rule
(lib/puppet/util/pidlock.rb, the same in 7 and 8) if the process is gone or is not Puppet, and also
if the process is younger than the lock: then it got the pid of a process that has ended.

The rule takes localpuppet for Puppet, because the names end alike. A localpuppet that is about to
start Puppet has the file locked by `flock`; without that, an agent has the pid by chance.
"""

import fcntl
import os
import re
from contextlib import suppress
from pathlib import Path

from localpuppet.base.errors import BusyError
from localpuppet.base.machine.files import disk_errors, make_public, replace_file
from localpuppet.base.machine.ports import ProcessTable

# Seconds by which the times of a file and of a process may differ.
_TOLERANCE = 1.0


class PuppetRunLock:
    """The lock that a `puppet agent` run takes; take it only with the node's own lock.

    Args:
        path: Puppet's `agent_catalog_run_lockfile`.
        processes: Describes the process with a pid.
    """

    def __init__(self, path: Path, processes: ProcessTable) -> None:
        self._path = path
        self._processes = processes
        self._mine: int | None = None
        self._fd = -1

    def take(self) -> None:
        """Take the lock, even if a dead process left it.

        Raises:
            BusyError: A Puppet agent's run holds it, or a run of another localpuppet root.
        """
        make_public(self._path.parent)
        for _ in range(3):
            if self._create():
                return
            self.refuse_held()
            self._remove()
        raise self._busy(self._pid())

    def refuse_held(self) -> None:
        """Raise `BusyError` if a run holds the lock; it names the process."""
        pid = self._pid()
        if pid is not None and self._is_held(pid):
            raise self._busy(pid)

    def hand_to(self, pid: int) -> None:
        """Name `pid` as the holder: Puppet trusts a lock only if its holder is a Puppet."""
        if self._mine is None:
            return
        replace_file(self._path, str(pid).encode(), mode=0o644)
        self._mine = pid
        self._unlock()

    def release(self) -> None:
        """Release the lock if this run still holds it."""
        if self._mine is not None and self._pid() == self._mine:
            self._remove()
        self.leave()

    def leave(self) -> None:
        """Leave the lock to a Puppet that does not die."""
        self._mine = None
        self._unlock()

    def _create(self) -> bool:
        """Create the file, locked and with this process's pid from its first moment."""
        temporary = self._path.with_name(f".{self._path.name}.{os.urandom(6).hex()}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with disk_errors(self._path), suppress(FileExistsError):
            self._fd = os.open(temporary, flags, 0o644)
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX)
                os.write(self._fd, str(os.getpid()).encode())
                self._path.hardlink_to(temporary)
                self._mine = os.getpid()
            finally:
                temporary.unlink()
                if self._mine is None:
                    self._unlock()
        return self._mine is not None

    def _unlock(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _busy(self, pid: int | None) -> BusyError:
        """Return the error that names the holder.

        The lock has only a pid; a Puppet that localpuppet started has a localpuppet file among its
        arguments.
        """
        process = self._processes.look_up(pid or 0)
        words = process.words if process else ()
        other = any("localpuppet" in word for word in words)
        holder = "a run of another localpuppet root" if other else "a puppet agent run"
        reports = [word for word in words if word.endswith("/report.json")]
        record = f", recorded in {Path(reports[0]).parent}" if other and reports else ""
        return BusyError(
            f"{holder} (pid {pid}{record}) is using this node",
            where=str(self._path),
            hint="try again when it has ended",
        )

    def _remove(self) -> None:
        with disk_errors(self._path):
            self._path.unlink(missing_ok=True)

    def _pid(self) -> int | None:
        try:
            text = self._path.read_text("ascii").strip()
        except (OSError, UnicodeDecodeError):
            return None
        return int(text) if text.isdecimal() and len(text) < 10 else None

    def _is_held(self, pid: int) -> bool:
        process = self._processes.look_up(pid)
        if process is None:
            return False
        with disk_errors(self._path), suppress(FileNotFoundError):
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
                if process.started_at > os.fstat(fd).st_mtime + _TOLERANCE:
                    return False
            except BlockingIOError:
                return True
            finally:
                os.close(fd)
        # The agent's fork server is a `puppet --version` that does not end.
        if process.name == "localpuppet" or "--version" in process.words:
            return False
        is_ruby = "ruby" in process.name and any("puppet" in word for word in process.words)
        return is_ruby or re.search(r"puppet(-.*)?$", process.name) is not None
