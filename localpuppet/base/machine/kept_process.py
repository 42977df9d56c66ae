"""A process that runs as long as localpuppet does, and no longer.

Its standard input is a pipe whose other end only localpuppet has: the process reads the end of that
input when localpuppet ends, for whatever reason.
"""

import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from localpuppet.base.errors import StateError
from localpuppet.base.machine.child import OwnGroup
from localpuppet.base.machine.ports import ProcessId
from localpuppet.base.machine.process_table import SystemProcessTable
from localpuppet.base.machine.processes import spawn


class KeptProcess:
    """A started process; see `start_kept`.

    Attributes:
        identity: Its process id.
    """

    def __init__(self, pid: int, pipe: int) -> None:
        self._group = OwnGroup(pid)
        self._pipe = pipe
        self.identity: ProcessId = SystemProcessTable().identify(pid)

    def end(self) -> None:
        """Send TERM; an ended process is fine."""
        self._group.signal(signal.SIGTERM)

    def code(self) -> int:
        """Wait for the end and return the exit code; `-N` for signal N."""
        ended = self._group.poll(block=True)
        self._group.reap()
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        if ended is None or ended.code is None:
            return -(ended.signal or 0) if ended else 0
        return ended.code


def start_kept(argv: Sequence[str], *, env: Mapping[str, str]) -> KeptProcess:
    """Start a process whose standard input ends when localpuppet does.

    Args:
        argv: The command; its first word is an absolute path. Its output goes to localpuppet's
            standard error.
        env: Its whole environment.

    Raises:
        StateError: The process cannot be started.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        pid = spawn(argv, env=env, cwd=Path("/"), out=2, err=2, stdin=reader)
    except OSError as error:
        os.close(writer)
        raise StateError(f"cannot be started: {error.strerror}", where=str(argv[0])) from error
    finally:
        os.close(reader)
    return KeptProcess(pid, writer)
