"""The record of a run that is not over: opened before Puppet starts, and closed when the run ends.

Owns: what the record says while the run goes on, and from when the run's time counts. Refuses to
know: who else is told of it (the node's lock, metrics), what a run is.
"""

from dataclasses import asdict, replace

from localpuppet.base.machine.ports import Clock, ProcessId
from localpuppet.node.puppet.launching import Launched
from localpuppet.node.runs.records import RunDirectory
from localpuppet.node.runs.run import Ending, RunRequest, State, Status, Verdict


class OpenRecord:
    """What is on record of a run that is not over. The run's time counts from here on.

    Args:
        directory: Where the record is.
        status: How the run stands: queued.
        clock: Time.
    """

    def __init__(self, directory: RunDirectory, status: Status, *, clock: Clock) -> None:
        self.directory = directory
        self.status = status
        self.begun = clock.monotonic()
        self._clock = clock

    def open(self, request: RunRequest) -> None:
        """Write the record for the first time."""
        self.directory.open(request, self.status)

    def hand_to(self, supervisor: ProcessId) -> None:
        """Take that another process goes on with the run; `write` has it on the disk."""
        self.status = replace(self.status, supervisor=asdict(supervisor))

    def start(self, launched: Launched) -> None:
        """Take that Puppet has started; `write` has it on the disk."""
        self.status = replace(
            self.status,
            state=State.RUNNING,
            puppet_started=True,
            puppet=asdict(launched.child.identity),
            warm=launched.warm,
            cold_reason=launched.cold_reason,
        )

    def write(self) -> None:
        """Have the record say how the run stands."""
        self.directory.write_status(self.status)

    def close(self, verdict: Verdict, ending: Ending) -> Status:
        """Say how the run ended, and return that.

        Raises:
            StateError: The disk refused; the record reads `interrupted` then.
        """
        now, seconds = self._clock.now(), self._clock.monotonic() - self.begun
        status = self.status.finished(verdict, ending, at=now, seconds=seconds)
        self.directory.close(status)
        return status
