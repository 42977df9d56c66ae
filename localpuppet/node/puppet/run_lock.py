"""Puppet's own run lock `agent_catalog_run_lockfile`, which `puppet apply` ignores.

localpuppet respects the lock and takes it. The file has a pid; a lock is stale by Puppet's rule
(lib/puppet/util/pidlock.rb, 7.23) if the process is gone or its command is not Puppet.
"""

import os
from pathlib import Path

from localpuppet.base.errors import BusyError
from localpuppet.base.machine.files import disk_errors, make_public, replace_file, state_problem
from localpuppet.base.machine.ports import ProcessTable


class PuppetRunLock:
    """The lock that a `puppet agent` run takes.

    Args:
        path: Puppet's `agent_catalog_run_lockfile`.
        processes: Returns the command of a pid.
    """

    def __init__(self, path: Path, processes: ProcessTable) -> None:
        self._path = path
        self._processes = processes
        self._mine: int | None = None

    def take(self) -> None:
        """Take the lock, even if a dead process left it.

        Raises:
            BusyError: A Puppet agent's run holds it, or a run of another localpuppet root.
        """
        make_public(self._path.parent)
        for _ in range(3):
            try:
                fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            except FileExistsError:
                holder = self._holder()
                if holder is not None and self._is_puppet(holder):
                    break
                self._remove()
            except OSError as error:
                raise state_problem(error, self._path) from error
            else:
                os.write(fd, str(os.getpid()).encode())
                os.close(fd)
                self._mine = os.getpid()
                return
        raise self._busy()

    def hand_to(self, pid: int) -> None:
        """Name `pid` as the holder: Puppet trusts a lock only if its holder is a Puppet."""
        if self._mine is None:
            return
        replace_file(self._path, str(pid).encode(), mode=0o644)
        self._mine = pid

    def release(self) -> None:
        """Release the lock if this run still holds it."""
        if self._mine is not None and self._holder() == self._mine:
            self._remove()
        self._mine = None

    def leave(self) -> None:
        """Leave the lock to a Puppet that does not die."""
        self._mine = None

    def _busy(self) -> BusyError:
        """Return the error that names the holder.

        The lock has only a pid; a Puppet that localpuppet started has a localpuppet file among its
        arguments.
        """
        pid = self._holder()
        words = self._processes.command_line(pid or 0)
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

    def _holder(self) -> int | None:
        try:
            text = self._path.read_text("ascii").strip()
        except (OSError, UnicodeDecodeError):
            return None
        return int(text) if text.isdecimal() and len(text) < 10 else None

    def _is_puppet(self, pid: int) -> bool:
        return any("puppet" in word for word in self._processes.command_line(pid)[:3])
