"""The record of a running run: opened before Puppet starts, and closed when the run ends."""

from dataclasses import asdict, replace

from localpuppet.base.machine.ports import Clock, ProcessId
from localpuppet.node.puppet.launching import LaunchedPuppet
from localpuppet.node.runs.options import RunRequest
from localpuppet.node.runs.records import RunDirectory
from localpuppet.node.runs.run import RunState, Status
from localpuppet.node.runs.verdict import PuppetEnd, RunVerdict, finish


class OpenRecord:
    """The record of a run that has not ended. The run's duration counts from here on.

    Args:
        directory: The record's directory.
        status: The first status: queued.
        clock: The clock.
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
        """Set the process that continues the run; `write` saves it."""
        self.status = replace(self.status, supervisor=asdict(supervisor))

    def start(self, launched: LaunchedPuppet) -> None:
        """Set Puppet's process and start time; `write` saves them."""
        self.status = replace(
            self.status,
            state=RunState.RUNNING,
            puppet_started=True,
            puppet=asdict(launched.child.identity),
            warm=launched.warm,
            cold_reason=launched.cold_reason,
        )

    def write(self) -> None:
        """Write the current status to the record."""
        self.directory.write_status(self.status)

    def close(self, verdict: RunVerdict, ending: PuppetEnd) -> Status:
        """Write the result of the run, and return the final status.

        Raises:
            StateError: The disk refused; the record then reads `interrupted`.
        """
        now, seconds = self._clock.now(), self._clock.monotonic() - self.begun
        status = finish(self.status, verdict, ending, at=now, seconds=seconds)
        self.directory.close(status)
        return status
