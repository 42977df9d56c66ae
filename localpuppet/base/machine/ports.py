"""Protocols of the machine that use cases depend on; adapters implement them, tests fake them."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from localpuppet.base.value import Value


class Clock(Protocol):
    """Time: aware UTC for records, monotonic seconds for durations."""

    def now(self) -> datetime:
        """Return the time of day in UTC."""

    def monotonic(self) -> float:
        """Return seconds from a clock that never goes back."""


class ProcessId(Value):
    """The identity of a process, distinct from a later process with the same number.

    Attributes:
        boot_id: The kernel's random id of this boot (`/proc/sys/kernel/random/boot_id`).
        started: Start time in clock ticks since boot (`/proc/PID/stat`, field 22).
    """

    pid: int
    boot_id: str
    started: int

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any] | None) -> "ProcessId":
        """Return the process in a record; `NOBODY` if the record has no valid one."""
        try:
            process = cls(**(raw or {}))
        except TypeError:
            return NOBODY
        types = (type(process.pid), type(process.boot_id), type(process.started))
        return process if types == (int, str, int) else NOBODY


# A process that never existed.
NOBODY = ProcessId(pid=0, boot_id="", started=0)


class ProcessEnd(Value):
    """How a child ended: an exit code, or the signal that killed it."""

    code: int | None
    signal: int | None


class Child(Protocol):
    """A started Puppet, its process group and, if the kernel allows, its cgroup."""

    @property
    def identity(self) -> ProcessId:
        """Return the identity of the process."""

    def wait(self, seconds: float) -> ProcessEnd | None:
        """Return how the child ended; `None` if it still runs after `seconds` or a signal."""

    def read(self) -> bytes:
        """Return what the child has written since the last call; empty if nothing is new."""

    def skip(self) -> None:
        """Discard the output that was not read."""

    def end(self, *, kill: bool) -> None:
        """Terminate the child and its descendants with TERM, or with KILL."""

    def release(self) -> None:
        """Free the child's resources; what it left running on purpose continues."""


class Output(Value):
    """The result of a finished command."""

    ended: ProcessEnd
    stdout: bytes
    stderr: bytes


class RunningProcess(Value):
    """A running process: at most 15 characters of its name, its start by the present clock."""

    name: str
    words: Sequence[str]
    started_at: float


class ProcessTable(Protocol):
    """The running processes."""

    def me(self) -> ProcessId:
        """Return this process."""

    def alive(self, process: ProcessId) -> bool:
        """Return whether this very process still runs."""

    def family(self, process: ProcessId) -> list[ProcessId]:
        """Return this very process and its descendants; empty if it has ended."""

    def signal(self, processes: Iterable[ProcessId], number: int) -> None:
        """Signal these very processes; ended ones are skipped."""

    def look_up(self, pid: int) -> RunningProcess | None:
        """Return what the kernel says about a running process; `None` if it has ended."""


class Processes(ProcessTable, Protocol):
    """Starts children, and counts the signals that this process receives."""

    def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        keep: Sequence[int],
        group: str,
    ) -> Child:
        """Start a child in its own process group.

        Args:
            keep: Descriptors that it inherits and keeps after localpuppet dies.

        Raises:
            StateError: The child cannot be started.
        """

    def capture(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        timeout: float,
        limit: int,
    ) -> Output | None:
        """Run a command to its end; `None` if it did not end within `timeout` seconds.

        On timeout, all its processes are killed. More than `limit` bytes of output end it as well;
        of its errors, only the first `limit` bytes are kept.

        Raises:
            StateError: The command cannot be started.
        """

    def sleep(self, seconds: float) -> None:
        """Wait until a signal arrives or a child ends, at most `seconds`."""

    def cancellations(self) -> int:
        """Return the number of stop signals (INT, TERM) since the program started."""


class Progress(Protocol):
    """Shows a person on a terminal, if any, the progress of a long operation."""

    def begin(self) -> None:
        """Begin to show progress."""

    def count(self, done: int, total: int, things: str) -> None:
        """Show that `done` of `total` things are done; `things` is their plural."""

    def note(self, text: str) -> None:
        """Show a text that a person should read, such as a warning."""

    def close(self) -> None:
        """Stop showing progress."""


class LineKind(StrEnum):
    """The subject of a line in the agent's log: lines of one kind share one rate limit.

    Messages from outside have kinds of their own, so that a flood of them hides no line about
    accepted work.
    """

    ACCEPTED = "accepted triggers"
    STRANGER = "refused messages"
    CAUSE = "dropped causes"
    RUN = "runs"
    REQUEST = "requests"
    LEASE = "leases"
    INVENTORY = "the inventory"
    KICK = "kicks"
    BUS = "the bus"
    SERVICE = "the agent itself"


class Log(Protocol):
    """The agent's log: one line for each event."""

    def info(self, text: str, *, kind: LineKind = LineKind.SERVICE) -> None:
        """Log what happened."""

    def warning(self, text: str, *, kind: LineKind = LineKind.SERVICE) -> None:
        """Log what an operator should know."""

    def debug(self, text: str, *, kind: LineKind = LineKind.SERVICE) -> None:
        """Log a detail for debugging."""
