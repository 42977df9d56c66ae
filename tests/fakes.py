"""Fakes of our own ports."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from localpuppet.ports import Child, Output, ProcessId


class FakeClock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.time = datetime(2026, 11, 20, 14, 0, tzinfo=UTC)

    def now(self) -> datetime:
        return self.time

    def monotonic(self) -> float:
        return self.time.timestamp()

    def advance(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


class FakeProcesses:
    """Processes that are said to live; none can be started."""

    def __init__(self, living: Sequence[ProcessId] = ()) -> None:
        self.living = list(living)
        self.command_lines: dict[int, list[str]] = {}

    def me(self) -> ProcessId:
        return ProcessId(pid=1, boot_id="b", started=1)

    def alive(self, process: ProcessId) -> bool:
        return process in self.living

    def command_line(self, pid: int) -> list[str]:
        return self.command_lines.get(pid, [])

    def start(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, keep: int, group: str
    ) -> Child:
        raise NotImplementedError

    def capture(
        self, argv: Sequence[str], *, env: Mapping[str, str], timeout: float, limit: int
    ) -> Output | None:
        raise NotImplementedError

    def sleep(self, seconds: float) -> None:
        raise NotImplementedError

    def cancellations(self) -> int:
        return 0


class FakeLog:
    """A log that is kept."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, text: str) -> None:
        self.lines.append(f"info: {text}")

    def warning(self, text: str) -> None:
        self.lines.append(f"warning: {text}")

    def debug(self, text: str) -> None:
        self.lines.append(f"debug: {text}")
