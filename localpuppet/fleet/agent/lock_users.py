"""Watch the runs and processes that use a lock of this node, and end them if the lock is lost.

- Only the processes that use the lock get a signal, whether this agent, an earlier one or a person
  started them.
"""

import asyncio
import signal
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.machine.ports import LineKind, Log, ProcessId, ProcessTable
from localpuppet.node.runs.run import RunState, Status

if TYPE_CHECKING:
    from localpuppet.fleet.leases.keeper import LockUser
    from localpuppet.node.runs.records import Records


@dataclass(frozen=True, slots=True)
class LockUsers:
    """Runs and processes that use locks.

    Attributes:
        records: The records of this node's runs.
        processes: The processes of the machine.
        log: The agent's log.
        grace: Seconds between TERM and KILL.
    """

    records: "Records"
    processes: ProcessTable
    log: Log
    _: KW_ONLY
    grace: float

    def go_on(self, user: "LockUser") -> bool:
        """Return whether a run, or else a process, still uses its lock.

        If a supervisor died, its run lasts as long as Puppet does. If the state is unknown, the run
        counts as running: the node keeps the lock.
        """
        try:
            status = self._status(user)
        except StateError as error:
            self.log.warning(f"keeping the locks of {user}: {error}", kind=LineKind.LEASE)
            return True
        if status is not None:
            return status.state is not RunState.FINISHED or self.records.orphaned(status)
        return user.process is not None and self.processes.alive(user.process)

    def end(self, user: "LockUser") -> None:
        """End the users of a lost lock, because another node may take the lock.

        A supervisor ends its Puppet. Without a supervisor, all descendants of the process get TERM,
        and KILL after the grace period.
        """
        self.log.warning(f"ending {user}: its lock was lost", kind=LineKind.LEASE)
        try:
            status = self._status(user)
        except StateError as error:
            self.log.warning(f"cannot find its supervisor: {error}", kind=LineKind.LEASE)
            status = None
        process = user.process
        if status is not None:
            supervisor = ProcessId.from_dict(status.supervisor)
            if self.processes.alive(supervisor):
                self.processes.signal([supervisor], signal.SIGTERM)
                return
            process = ProcessId.from_dict(status.puppet)
        if process is not None:
            self._end_family(process)

    def _end_family(self, process: "ProcessId") -> None:
        family = self.processes.family(process)
        self.processes.signal(family, signal.SIGTERM)

        def kill() -> None:
            later = [relative for item in family for relative in self.processes.family(item)]
            self.processes.signal([*family, *later], signal.SIGKILL)

        asyncio.get_running_loop().call_later(self.grace, kill)

    def _status(self, user: "LockUser") -> Status | None:
        """Return the status of the user's run; `None` without a record."""
        if user.run is None:
            return None
        try:
            return self.records.status(self.records.get(user.run))
        except InvalidInputError:
            return None
