"""What the middle of the program needs of the world, as Protocols.

Adapters implement them, tests have fakes of them. Nothing here does anything.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol


class Clock(Protocol):
    """Time: aware UTC for records, monotonic seconds for durations."""

    def now(self) -> datetime:
        """Return the time of day in UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds from a clock that never goes back."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessId:
    """A process that cannot be mistaken for a later one with the same number.

    Attributes:
        pid: The number.
        boot_id: The kernel's random id of this boot (`/proc/sys/kernel/random/boot_id`).
        started: Start time in clock ticks since boot (`/proc/PID/stat`, field 22).
    """

    pid: int
    boot_id: str
    started: int

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any] | None) -> "ProcessId":
        """Return the process that a record names; `NOBODY` when the record names none."""
        try:
            process = cls(**(raw or {}))
        except TypeError:
            return NOBODY
        types = (type(process.pid), type(process.boot_id), type(process.started))
        return process if types == (int, str, int) else NOBODY


# A process that never lived.
NOBODY = ProcessId(pid=0, boot_id="", started=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a child ended: an exit code, or the signal that killed it."""

    code: int | None
    signal: int | None


class Child(Protocol):
    """A started Puppet, its process group and, where the kernel lets us, its cgroup."""

    @property
    def identity(self) -> ProcessId:
        """Return who it is."""
        ...

    def wait(self, seconds: float) -> Ended | None:
        """Return how it ended, or `None` when it goes on after `seconds` or a signal came."""
        ...

    def read(self) -> bytes:
        """Return what it has written since the last call; empty when nothing is new."""
        ...

    def skip(self) -> None:
        """Throw away what it has written and was not read."""
        ...

    def end(self, *, kill: bool) -> None:
        """Ask it and everything it started to end (TERM), or kill it (KILL)."""
        ...

    def release(self) -> None:
        """Free what was held for it; what it left running on purpose goes on."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What a finished command answered."""

    ended: Ended
    stdout: bytes
    stderr: bytes


class Processes(Protocol):
    """Other processes."""

    def me(self) -> ProcessId:
        """Return this process."""
        ...

    def alive(self, process: ProcessId) -> bool:
        """Return whether that very process still runs."""
        ...

    def family(self, process: ProcessId) -> list[ProcessId]:
        """Return that very process and everything below it; empty when it is gone."""
        ...

    def signal(self, processes: Iterable[ProcessId], number: int) -> None:
        """Signal these very processes; one that is gone is left out."""
        ...

    def command_line(self, pid: int) -> Sequence[str]:
        """Return the arguments of a running process; empty when there is none."""
        ...

    def start(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, keep: int, group: str
    ) -> Child:
        """Start a child in a process group of its own.

        Args:
            argv: Absolute program and arguments.
            env: Its whole environment.
            cwd: Its working directory.
            keep: A file descriptor that it inherits, whatever happens to us.
            group: The name for its cgroup.

        Raises:
            StateError: It could not be started.
        """
        ...

    def capture(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        timeout: float,
        limit: int,
    ) -> Output | None:
        """Run a command to its end; `None` when it did not end within `timeout` seconds.

        Everything that it started is killed then. More than `limit` bytes of output also end it;
        of its errors, the first `limit` bytes are kept and the others dropped.

        Raises:
            StateError: It could not be started.
        """
        ...

    def sleep(self, seconds: float) -> None:
        """Wait until a signal comes or a child ends, at most `seconds`."""
        ...

    def cancellations(self) -> int:
        """Return how often we were asked to stop (INT, TERM) since the program started."""
        ...


class Progress(Protocol):
    """Whoever is shown that something takes long: a person on a terminal, or nobody."""

    def begin(self) -> None:
        """Begin to show it."""
        ...

    def tick(self, seconds: float) -> None:
        """Learn that it goes on after `seconds`."""
        ...

    def count(self, done: int, total: int, things: str) -> None:
        """Learn that `done` of `total` things are done; in the plural, what they are."""
        ...

    def note(self, text: str) -> None:
        """Take something that a person should read, such as a warning."""
        ...

    def close(self) -> None:
        """Show it no longer."""
        ...


class ServiceStatus(Protocol):
    """Whoever started this service, and wants to hear how it is."""

    @property
    def pulse(self) -> float:
        """Return in how many seconds, at most, it wants to hear of us; infinity for never."""
        ...

    def ready(self, status: str) -> None:
        """Say that the service is up."""
        ...

    def stopping(self) -> None:
        """Say that the service is going."""
        ...

    def alive(self) -> None:
        """Say that the work goes on, as often as it is asked for."""
        ...


class LineKind(StrEnum):
    """What a line of the agent's log is about: lines of one kind are limited together.

    What strangers can make an agent say has kinds of its own, so that a flood of such lines hides
    nothing that becomes of what was accepted.
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
    """Where the agent says what it does: one line each."""

    def info(self, text: str, *, kind: LineKind = LineKind.SERVICE) -> None:
        """Log what happened."""
        ...

    def warning(self, text: str, *, kind: LineKind = LineKind.SERVICE) -> None:
        """Log what an operator should know."""
        ...

    def debug(self, text: str, *, kind: LineKind = LineKind.SERVICE) -> None:
        """Log a detail for debugging."""
        ...
