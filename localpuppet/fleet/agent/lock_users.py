"""Those who rely on a lock of this node: whether they go on, and their end when it is lost.

Owns: what a run or a process that asked for a lock is on this machine. Refuses to know: the bus.

Invariant: only the very processes that relied on the lock are signalled, whoever started them: this
agent, the one before it, or a person.
"""

import asyncio
import signal
from typing import TYPE_CHECKING

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.machine.ports import LineKind, ProcessId
from localpuppet.node.runs.run import State, Status

if TYPE_CHECKING:
    from localpuppet.base.machine.ports import Log, Processes
    from localpuppet.fleet.leases.book import LockUser
    from localpuppet.node.runs.records import Records


class LockUsers:
    """Runs and processes that have locks.

    Args:
        records: The runs of this node.
        processes: The machine's.
        log: What it says.
        grace: Seconds between TERM and KILL.
    """

    def __init__(
        self, records: "Records", processes: "Processes", log: "Log", *, grace: float
    ) -> None:
        self._records = records
        self._processes = processes
        self._log = log
        self._grace = grace

    def go_on(self, user: "LockUser") -> bool:
        """Return whether a run, or else a process, is still there.

        A run whose supervisor died goes on for as long as its Puppet does. Where it cannot be told,
        it does: a lock is kept rather than given away.
        """
        try:
            status = self._status(user)
        except StateError as error:
            self._log.warning(f"keeping the locks of {user}: {error}", kind=LineKind.LEASE)
            return True
        if status is not None:
            return status.state is not State.FINISHED or self._records.orphaned(status)
        return user.process is not None and self._processes.alive(user.process)

    def end(self, user: "LockUser") -> None:
        """Ask those to end whose lock was lost: another node may rely on it from now on.

        A run's supervisor ends its Puppet. Where there is none, everything below is asked, and
        killed when it does not listen.
        """
        self._log.warning(f"ending {user}: its lock was lost", kind=LineKind.LEASE)
        try:
            status = self._status(user)
        except StateError as error:
            self._log.warning(f"whose supervisor cannot be told: {error}", kind=LineKind.LEASE)
            status = None
        process = user.process
        if status is not None:
            supervisor = ProcessId.from_dict(status.supervisor)
            if self._processes.alive(supervisor):
                self._processes.signal([supervisor], signal.SIGTERM)
                return
            process = ProcessId.from_dict(status.puppet)
        if process is not None:
            self._end_family(process)

    def _end_family(self, process: "ProcessId") -> None:
        family = self._processes.family(process)
        self._processes.signal(family, signal.SIGTERM)

        def kill() -> None:
            later = [relative for one in family for relative in self._processes.family(one)]
            self._processes.signal([*family, *later], signal.SIGKILL)

        asyncio.get_running_loop().call_later(self._grace, kill)

    def _status(self, user: "LockUser") -> Status | None:
        """Return how the user's run stands; `None` where there is no record of such a run."""
        if user.run is None:
            return None
        try:
            return self._records.status(self._records.get(user.run))
        except InvalidInputError:
            return None
