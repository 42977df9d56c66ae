"""Fakes of our own ports."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from localpuppet.agent.runner import Order, RunEnd
from localpuppet.leases.book import Noted
from localpuppet.machine.ports import Child, LineKind, Output, ProcessId


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

    def family(self, process: ProcessId) -> list[ProcessId]:
        return [process] if self.alive(process) else []

    def signal(self, processes: Iterable[ProcessId], number: int) -> None:
        raise NotImplementedError

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
    """Keeps what is said."""

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


class FakeBook:
    """Leases that are noted, in memory."""

    def __init__(self) -> None:
        self.noted: dict[str, Noted] = {}

    def note(self, noted: Noted) -> None:
        self.noted[noted.name] = noted

    def strike(self, name: str) -> None:
        self.noted.pop(name, None)

    def entries(self) -> list[Noted]:
        return list(self.noted.values())


class FakeRunner:
    """Runs that begin when the agent says and end when the test says."""

    def __init__(self) -> None:
        self.orders: asyncio.Queue[Order] = asyncio.Queue()
        self.ends: asyncio.Queue[RunEnd | Exception] = asyncio.Queue()
        self.on = False
        self.ended_by_us = 0

    async def run(self, order: Order) -> RunEnd:
        assert not self.on, "never two at once"
        self.on = True
        self.orders.put_nowait(order)
        try:
            end = await self.ends.get()
            if isinstance(end, Exception):
                raise end
            return end
        finally:
            self.on = False

    def end(self) -> None:
        self.ended_by_us += 1
