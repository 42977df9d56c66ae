"""The agent's timer: when a node's own run is due, spread over the fleet.

    step(now) -> ask for a run when it is due, and say how long to sleep

Invariant: a node runs at its own second of each period, whatever the clock does: one that was set
back does not keep the node waiting for longer than a period.
"""

import hashlib
import math
from collections.abc import Callable

from localpuppet.base.formats.names import NodeName

# The timer looks at the clock so often, in case somebody has set it.
LONGEST = 60.0


def splay(node: NodeName, every: float) -> float:
    """Return at which second of each period a node runs: the same for ever, spread over the fleet.

    Args:
        node: The node.
        every: The period in seconds.
    """
    digest = hashlib.sha256(node.encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64 * every


class Timer:
    """Asks for a run once a period.

    Args:
        every: The period in seconds.
        phase: At which second of each period; see `splay`.
        now: The time at the start, in seconds since 1970.
        due: Called when a run is due.
    """

    def __init__(self, every: float, *, phase: float, now: float, due: Callable[[], None]) -> None:
        self._every = every
        self._phase = phase
        self._call = due
        self._due = self._next(now)

    def step(self, now: float) -> float:
        """Ask for a run when it is due; return how many seconds to sleep."""
        if now >= self._due:
            self._call()
        if now >= self._due or self._due - now > self._every:  # or somebody set the clock back
            self._due = self._next(now)
        return min(self._due - now, LONGEST)

    def _next(self, now: float) -> float:
        """Return the first second after `now` at which a period of this node begins."""
        return (math.floor((now - self._phase) / self._every) + 1) * self._every + self._phase
