"""Decide when to look for changed answers.

- All changes within `DEBOUNCE` seconds after the first share one look.
- Looking takes at most one part in `SHARE` of the time: with ten thousand entries and constant
  changes, the looks are further apart.
- An entry that expires sends no event, so a look follows after `RECHECK` seconds at the latest.
"""

DEBOUNCE = 2.0
SHARE = 10
RECHECK = 600.0


class Pace:
    """The times of the looks, in seconds of a clock that never goes back.

    Args:
        now: The current time.
    """

    def __init__(self, now: float) -> None:
        self._due = now + DEBOUNCE
        self._free = now

    def changed(self, now: float) -> None:
        """Record that something may have changed."""
        self.look_at(now + DEBOUNCE)

    def look_at(self, due: float) -> None:
        """Schedule a look for `due` at the latest."""
        self._due = min(self._due, due)

    def wait(self, now: float) -> float:
        """Return the seconds until the next look; 0 if it is due."""
        return max(0.0, self._due - now, self._free - now)

    def looked(self, *, begun: float, ended: float) -> None:
        """Record a look that included all changes before `begun`."""
        self._due = ended + RECHECK
        self._free = ended + (ended - begun) * (SHARE - 1)
