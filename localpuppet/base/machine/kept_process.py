"""A process that goes on for as long as we do, and no longer.

Invariant: its standard input is a pipe of which we alone have the other end, so that it can tell
when we are gone, however that came. Refuses to know: what it does.
"""

import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from localpuppet.base.errors import StateError
from localpuppet.base.machine.child import OwnGroup
from localpuppet.base.machine.ports import ProcessId
from localpuppet.base.machine.processes import SystemProcesses, spawn


class KeptProcess:
    """A process that was started; see `start_kept`.

    Attributes:
        identity: Who it is.
    """

    def __init__(self, pid: int, pipe: int, processes: SystemProcesses) -> None:
        self._group = OwnGroup(pid)
        self._pipe = pipe
        self.identity: ProcessId = processes.identify(pid)

    def end(self) -> None:
        """Ask it to end; none is fine."""
        self._group.signal(signal.SIGTERM)

    def code(self) -> int:
        """Wait for its end and return its exit code; the number of a signal is negative."""
        ended = self._group.poll(block=True)
        self._group.reap()
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        if ended is None or ended.code is None:
            return -(ended.signal or 0) if ended else 0
        return ended.code


def start_kept(
    argv: Sequence[str], *, env: Mapping[str, str], processes: SystemProcesses
) -> KeptProcess:
    """Start a process that can tell when we are gone: its standard input ends.

    Args:
        argv: The command; its first word is an absolute path. What it says goes where our errors
            go.
        env: Its whole environment.
        processes: This machine's.

    Raises:
        StateError: It could not be started.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        pid = spawn(argv, env=env, cwd=Path("/"), out=2, err=2, stdin=reader)
    except OSError as error:
        os.close(writer)
        raise StateError(f"cannot be started: {error.strerror}", where=str(argv[0])) from error
    finally:
        os.close(reader)
    return KeptProcess(pid, writer, processes)
