"""How often it is looked whether answers have changed.

Owns: the debounce, and which share of the time looking may take. Refuses to know: clocks, and what
looking is.

- What changes within `DEBOUNCE` is looked at together, that long after the first of it.
- Looking takes at most one part in `SHARE` of the time: where questions read ten thousand entries,
  a fleet that changes all the time is looked at less often.
- Nothing is told when an entry expires: it is looked again at the latest after `RECHECK`.
"""

DEBOUNCE = 2.0
SHARE = 10
RECHECK = 600.0


class Pace:
    """When to look.

    All times are seconds of a clock that never goes back.

    Args:
        now: The time.
    """

    def __init__(self, now: float) -> None:
        self._due = now + DEBOUNCE
        self._free = now

    def changed(self, now: float) -> None:
        """Take that something may have changed."""
        self.look_at(now + DEBOUNCE)

    def look_at(self, due: float) -> None:
        """Have it looked at a time, at the latest."""
        self._due = min(self._due, due)

    def wait(self, now: float) -> float:
        """Return for how many seconds there is nothing to do; 0 when it is time to look."""
        return max(0.0, self._due - now, self._free - now)

    def looked(self, *, begun: float, ended: float) -> None:
        """Take that everything was looked at that had changed until `begun`."""
        self._due = ended + RECHECK
        self._free = ended + (ended - begun) * (SHARE - 1)
