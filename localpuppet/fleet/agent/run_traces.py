"""Detect runs and holds on this node that the agent did not start."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from localpuppet.base.machine.waiting import wait_first

# Seconds between two checks.
LOOK = 5.0


class RunTraces:
    """The modification times below the state directory that a run or a hold changes.

    Args:
        state: The state directory.
    """

    def __init__(self, state: Path) -> None:
        self._paths = (state / "lock", state / "runs", state / "holds")
        self._seen = self._look()

    def changed(self) -> bool:
        """Return whether something has changed since the last call."""
        before, self._seen = self._seen, self._look()
        return before != self._seen

    def _look(self) -> list[int]:
        times = []
        for path in self._paths:
            try:
                times.append(path.stat().st_mtime_ns)
            except FileNotFoundError:
                times.append(0)
        return times


async def notice(traces: RunTraces, changed: asyncio.Event, notify: Callable[[], None]) -> None:
    """Call `notify` when `traces` change; check at once when `changed` is set."""
    while True:
        await wait_first(changed, seconds=LOOK)
        changed.clear()
        if traces.changed():
            notify()
