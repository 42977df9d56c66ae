"""The agent's timer for periodic runs, spread over the fleet.

    step(now) -> request a run when one is due, and return how long to sleep

- A node runs at its own second of each period. If the clock is set back, the node waits for at most
  one period.
"""

import math
from collections.abc import Callable

# The longest sleep in seconds, to notice a changed clock.
LONGEST = 60.0


class Timer:
    """Requests a run once a period.

    Args:
        every: The period in seconds.
        phase: The second of each period; see `inventory.timetable.splay`.
        now: The start time in seconds since 1970.
        due: Called when a run is due.
    """

    def __init__(self, every: float, *, phase: float, now: float, due: Callable[[], None]) -> None:
        self._every = every
        self._phase = phase
        self._call = due
        self._due = self._next(now)

    def step(self, now: float) -> float:
        """Request a run when one is due; return how many seconds to sleep."""
        if now >= self._due:
            self._call()
        if now >= self._due or self._due - now > self._every:  # or the clock was set back
            self._due = self._next(now)
        return min(self._due - now, LONGEST)

    def _next(self, now: float) -> float:
        """Return the first second after `now` at which a period of this node begins."""
        return (math.floor((now - self._phase) / self._every) + 1) * self._every + self._phase
