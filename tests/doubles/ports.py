"""Fakes of the ports of base and node."""

import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from localpuppet.base.errors import StateError
from localpuppet.base.machine.ports import LineKind, Output, ProcessEnd, ProcessId, RunningProcess

EXIT_0 = ProcessEnd(code=0, signal=None)


class FakeClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.time = datetime(2026, 11, 20, 14, 0, tzinfo=UTC)

    def now(self) -> datetime:
        return self.time

    def monotonic(self) -> float:
        return self.time.timestamp()

    def advance(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


@dataclass(frozen=True, kw_only=True)
class Started:
    """The arguments with which a child was started."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    keep: Sequence[int]
    group: str


class FakeChild:
    """A child whose output and end a test defines.

    Like a real child, it keeps the inherited descriptor until it ends.
    """

    def __init__(
        self,
        output: Iterable[bytes] = (),
        *,
        ended: ProcessEnd = EXIT_0,
        lasts: float | None = 0.0,
        dies_of: Sequence[int] = (signal.SIGTERM, signal.SIGKILL),
    ) -> None:
        self.identity = ProcessId(pid=0, boot_id="b", started=0)
        self.signals: list[int] = []
        self.released = False
        self._pieces = deque(output)
        self._ended = ended
        self._lasts = lasts
        self._dies_of = dies_of
        self._end: ProcessEnd | None = None
        self._kept = -1
        self._clock = FakeClock()
        self._begun = 0.0

    def begin(self, identity: ProcessId, keep: Sequence[int], clock: "FakeClock") -> None:
        """Start."""
        self.identity = identity
        self._clock = clock
        self._begun = clock.monotonic()
        self._kept = os.dup(keep[0])

    @property
    def lives(self) -> bool:
        return self._end is None

    def die(self, ended: ProcessEnd) -> None:
        """End now."""
        if self._end is None:
            self._end = ended
            os.close(self._kept)

    def wait(self, seconds: float) -> ProcessEnd | None:
        if self._end is None and self._lasts is not None:
            left = self._begun + self._lasts - self._clock.monotonic()
            if left <= seconds:
                self._clock.advance(max(left, 0.0))
                self.die(self._ended)
        if self._end is None:
            self._clock.advance(seconds)
        return self._end

    def read(self) -> bytes:
        return self._pieces.popleft() if self._pieces else b""

    def skip(self) -> None:
        self._pieces.clear()

    def end(self, *, kill: bool) -> None:
        self.take(signal.SIGKILL if kill else signal.SIGTERM)

    def take(self, number: int) -> None:
        """Receive a signal."""
        self.signals.append(number)
        if number in self._dies_of:
            self.die(ProcessEnd(code=None, signal=number))

    def release(self) -> None:
        self.released = True


class FakeProcesses:
    """Processes that a test lists as alive, and children whose behaviour a test defines."""

    def __init__(
        self, living: Sequence[ProcessId] = (), *, clock: "FakeClock | None" = None
    ) -> None:
        self.living = list(living)
        self.command_lines: dict[int, list[str]] = {}
        self.running: dict[int, RunningProcess] = {}
        # returns the child of a program, by its path; others cannot be started
        self.programs: dict[str, Callable[[Started], FakeChild]] = {}
        self.started: list[Started] = []  # the arguments with which each child was started
        self.children: list[FakeChild] = []
        self.myself = ProcessId(pid=1, boot_id="b", started=1)
        self.cancelled = 0  # how often this process was asked to stop
        self._clock = clock or FakeClock()

    def me(self) -> ProcessId:
        return self.myself

    def alive(self, process: ProcessId) -> bool:
        mine = [child.identity for child in self.children if child.lives]
        return process in (*self.living, *mine, self.myself)

    def family(self, process: ProcessId) -> list[ProcessId]:
        return [process] if self.alive(process) else []

    def signal(self, processes: Iterable[ProcessId], number: int) -> None:
        for process in processes:
            for child in self.children:
                if child.identity == process and child.lives:
                    child.take(number)

    def look_up(self, pid: int) -> RunningProcess | None:
        dead = [child.identity.pid for child in self.children if not child.lives]
        if pid in self.running:
            return self.running[pid]
        words = [] if pid in dead else self.command_lines.get(pid, [])
        name = words[0].rpartition("/")[2] if words else ""
        return RunningProcess(name=name, words=words, started_at=0.0) if words else None

    def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path,
        keep: Sequence[int],
        group: str,
    ) -> FakeChild:
        if argv[0] not in self.programs:
            raise StateError("cannot be started: No such file or directory", where=argv[0])
        started = Started(argv=tuple(argv), env=dict(env), cwd=cwd, keep=keep, group=group)
        child = self.programs[argv[0]](started)
        pid = 4000 + len(self.children)
        child.begin(ProcessId(pid=pid, boot_id="b", started=pid), keep, self._clock)
        self.started.append(started)
        self.children.append(child)
        self.command_lines[pid] = list(argv)
        return child

    def capture(
        self, argv: Sequence[str], *, env: Mapping[str, str], timeout: float, limit: int
    ) -> Output | None:
        with Path(os.devnull).open("rb") as nothing:
            child = self.start(argv, env=env, cwd=Path("/"), keep=[nothing.fileno()], group="")
        ended = None if self.cancelled else child.wait(timeout)
        child.end(kill=True)
        if ended is None:
            return None
        stdout = b"".join(iter(child.read, b""))
        return Output(ended=ended, stdout=stdout[: limit + 1], stderr=b"")

    def sleep(self, seconds: float) -> None:
        self._clock.advance(seconds)

    def cancellations(self) -> int:
        return self.cancelled

    def close(self) -> None:
        """End every child that is still alive."""
        for child in self.children:
            child.die(ProcessEnd(code=None, signal=signal.SIGKILL))


class FakeObserver:
    """Records what a run reports to its observer."""

    def __init__(self) -> None:
        self.commands: list[str] = []
        self.lines: list[str] = []
        self.ticks: list[float] = []
        self.notes: list[str] = []

    def command(self, text: str) -> None:
        self.commands.append(text)

    def line(self, text: str) -> None:
        self.lines.append(text)

    def tick(self, seconds: float) -> None:
        self.ticks.append(seconds)

    def note(self, text: str) -> None:
        self.notes.append(text)


class FakeLog:
    """Records log lines."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []

    def info(self, text: str, *, kind: LineKind = LineKind.SERVICE) -> None:
        self.lines.append(("info", text))

    def warning(self, text: str, *, kind: LineKind = LineKind.SERVICE) -> None:
        self.lines.append(("warning", text))

    def debug(self, text: str, *, kind: LineKind = LineKind.SERVICE) -> None:
        self.lines.append(("debug", text))

    @property
    def text(self) -> str:
        return "\n".join(line for _, line in self.lines)
