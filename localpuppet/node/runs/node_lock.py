"""The node's lock: at most one run at a time, and other processes learn which run it is.

Puppet inherits the lock's descriptor: if the supervisor dies, no second run starts beside Puppet.
"""

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from localpuppet.base.errors import BusyError, InvalidInputError
from localpuppet.base.formats.names import RunId
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.machine.flock import Flock
from localpuppet.base.machine.ports import Clock, Processes, ProcessId
from localpuppet.node.runs.run import Status

# How long a holder may take to write its name after it got the lock.
INTRODUCTION = 2.0


class NodeLock:
    """The right to run on this node.

    Args:
        path: The lock file; it stays.
        processes: Knows which processes live.
    """

    def __init__(self, path: Path, processes: Processes) -> None:
        self._path = path
        self._processes = processes
        self._flock: Flock | None = None
        self._owner = 0

    @property
    def fd(self) -> int:
        """The descriptor that carries the lock, for Puppet to inherit."""
        if self._flock is None:
            raise AssertionError("the lock is asked for only while it is held")
        return self._flock.fd

    def take(self, run: RunId, clock: Clock) -> None:
        """Take the lock for `run`.

        Raises:
            BusyError: Another run has it; the message names that run.
            StateError: The lock file cannot be written.
        """
        deadline = clock.monotonic() + INTRODUCTION
        while (flock := Flock.take(self._path)) is None:
            holder = self._holder()
            if holder is not None or clock.monotonic() > deadline:
                raise _busy(holder)
            self._processes.sleep(0.01)
        self._flock = flock
        self._owner = os.getpid()
        self._say(run, asdict(self._processes.me()))

    def held_by(self, status: Status) -> None:
        """Write which processes carry the lock now; this process is its owner from here on."""
        self._owner = os.getpid()
        self._say(status.id, status.supervisor, status.puppet)

    def release(self) -> None:
        """Release the lock, also if a daemon inherited it from Puppet.

        A process that passed the lock to its child has nothing to release.
        """
        if self._flock is not None and self._owner == os.getpid():
            self._flock.say(None)
            self._flock.release()
        self._flock = None

    def leave(self) -> None:
        """Leave the lock to a Puppet that does not die; the lock is free when Puppet ends."""
        if self._flock is not None:
            os.close(self._flock.fd)
            self._flock = None

    def _say(self, run: RunId, *processes: Mapping[str, Any] | None) -> None:
        if self._flock is not None:
            self._flock.say(
                {"run": run, "processes": [process for process in processes if process]}
            )

    def _holder(self) -> "_Holder | None":
        """Return the run that the lock names, if a process that it names lives."""
        try:
            content = loads(self._path.read_bytes())
            processes = [ProcessId.from_dict(process) for process in content["processes"]]
            living = [process for process in processes if self._processes.alive(process)]
            supervised = bool(living) and living[0] == processes[0]
            return (
                _Holder(RunId.parse(content["run"]), living[-1].pid, supervised) if living else None
            )
        except (OSError, ValueError, KeyError, TypeError, InvalidInputError):
            return None


class _Holder(NamedTuple):
    """The holder of the lock: a run, one of its processes, and whether its supervisor lives."""

    run: RunId
    pid: int
    supervised: bool


def _busy(holder: _Holder | None) -> BusyError:
    if holder is None:
        return BusyError("busy: another run holds this node (it has not recorded its id yet)")
    if holder.supervised:
        return BusyError(
            f"busy: run {holder.run} is using this node",
            hint="'localpuppet status --wait' waits for it",
        )
    return BusyError(
        f"busy: Puppet of run {holder.run} (pid {holder.pid}) still runs without its supervisor",
        hint="try again when it has ended",
    )
