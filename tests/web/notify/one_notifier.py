"""A notifier that looks at a fleet and sends messages; a test kills it.

`python -m tests.web.notify.one_notifier DIR` continues where an earlier one was killed: the fleet
is what it was, and so is the time.
"""

import asyncio
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from localpuppet.web.notify.notice_ledger import NoticeLedger
from localpuppet.web.notify.notifier import Notifier
from localpuppet.web.notify.routing import (
    ChannelSettings,
    ChannelType,
    Condition,
    IncidentKind,
    NotifySettings,
)
from tests.doubles.ports import FakeClock, FakeLog

# What is wrong in each look, a minute apart: `for` is one minute, and `clear` two.
LOOKS = [*map(tuple, ("", "a", "ab", "ab", "", "b", "b", "b"))]
EVENTS = ["summary", "opened a", "opened b", "closed a"]


class _Sight:
    """A fleet in which conditions are wrong by the time."""

    def __init__(self, begun: float) -> None:
        self.begun = begun
        self.fleet = self
        self.failing: dict[str, dict[str, str]] = {}

    def note_failing(self, kind: str, reasons: dict[str, str]) -> None: ...

    def blindness(self) -> None: ...

    async def names(self, _: str) -> None: ...

    def conditions(self, now: float) -> tuple[dict[str, Condition], frozenset[str]]:
        wrong = LOOKS[round((now - self.begun) / 60.0)]
        seen = {key: Condition(key=key, kind=IncidentKind.DRIFT, subject=key) for key in wrong}
        return seen, frozenset()


async def main(directory: Path) -> None:
    # One thread: strace counts the calls of each.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    clock = FakeClock()
    done = directory / "done"
    channel = ChannelSettings(
        type=ChannelType.WEBHOOK, url_file=directory / "url", secret_file=directory / "secret"
    )
    sight: Any = _Sight(clock.monotonic())
    ledger = NoticeLedger(directory / "web" / "notify.sqlite", "production", "", lambda: 0.0)
    notifier = Notifier(
        NotifySettings(
            fleet="production", dashboard="", lasts=60.0, gone=120.0, channels={"hook": channel}
        ),
        sight,
        ledger,
        None,
        root=directory,
        metrics=directory / "metrics.prom",
        clock=clock,
        log=FakeLog(),
    )
    begun = int(done.read_text()) if done.exists() else 0
    clock.advance(60.0 * begun)
    for number in range(begun, len(LOOKS)):
        await notifier.look()
        await notifier.settled()
        done.write_text(str(number + 1))
        clock.advance(60.0)
    ledger.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
