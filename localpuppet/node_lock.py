"""The node's lock: at most one run, and everyone else learns which.

Owns: `lock` in the state directory. Puppet inherits the descriptor, so that the death of its
supervisor does not let a second run in. Refuses to know: what is done under it.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from localpuppet.errors import BusyError
from localpuppet.files import Flock
from localpuppet.model.names import RunId
from localpuppet.model.run import Status
from localpuppet.ports import Clock, Processes, ProcessId

# How long a holder may take to write its name after it got the lock.
INTRODUCTION = 2.0


class NodeLock:
    """The right to run on this node.

    Args:
        path: The lock file; it stays.
        processes: Tells who lives.
    """

    def __init__(self, path: Path, processes: Processes) -> None:
        self._path = path
        self._processes = processes
        self._flock: Flock | None = None

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
            StateError: The lock file cannot be made or written.
        """
        deadline = clock.monotonic() + INTRODUCTION
        while (flock := Flock.take(self._path)) is None:
            holder = self._holder()
            if holder is not None or clock.monotonic() > deadline:
                what = f"run {holder}" if holder else "a run that did not say its name"
                raise BusyError(
                    f"busy: {what} has this node", hint="'localpuppet status --wait' waits for it"
                )
            self._processes.sleep(0.01)
        self._flock = flock
        self._say(run, asdict(self._processes.me()))

    def held_by(self, status: Status) -> None:
        """Tell others which processes carry the lock now.

        Raises:
            StateError: The disk refused.
        """
        self._say(status.id, status.supervisor, status.puppet)

    def release(self) -> None:
        """Give the lock up, also for a daemon that inherited it from Puppet."""
        if self._flock is not None:
            self._flock.say(None)
            self._flock.release()
            self._flock = None

    def _say(self, run: RunId, *processes: Mapping[str, Any] | None) -> None:
        if self._flock is not None:
            self._flock.say({"run": run, "processes": [found for found in processes if found]})

    def _holder(self) -> str | None:
        """Return the run that the lock names, if a process that it names lives."""
        try:
            said = json.loads(self._path.read_bytes())
            alive = any(self._processes.alive(identity(found)) for found in said["processes"])
            return str(said["run"]) if alive else None
        except (OSError, ValueError, KeyError, TypeError):
            return None


def identity(raw: Mapping[str, Any] | None) -> ProcessId:
    """Return the process that a record names; one that never lived when it names none."""
    try:
        return ProcessId(**(raw or {}))
    except TypeError:
        return ProcessId(pid=0, boot_id="", started=0)
