"""An event loop with a simulated clock: time passes when no task is ready."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

# Simulated seconds after which a test fails.
LONGEST = 100_000.0

_Result = TypeVar("_Result")


class _Selector(selectors.SelectSelector):
    """Advances the time instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "no task will ever be ready again"
            self.now += max(timeout, 0.0)
            assert self.now < LONGEST, "the simulated work does not end"
        return ready


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop with the simulated clock."""

    def __init__(self) -> None:
        self._simulated = _Selector()
        super().__init__(self._simulated)

    def time(self) -> float:
        return self._simulated.now


def run_simulated(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Run work to its end in simulated time."""
    loop = SimulatedLoop()
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()
