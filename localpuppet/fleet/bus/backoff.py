"""Pauses between attempts: each one longer, and spread at random."""

from collections.abc import Callable
from random import SystemRandom

_CHANCE = SystemRandom().random
FIRST = 0.1
LONGEST = 0.5


class Backoff:
    """Pauses between attempts to reach an unreachable server.

    All nodes lose a server at the same moment, so each pause is random: from half of a time to all
    of it. That time doubles from `FIRST` seconds to the longest.

    Args:
        chance: Returns a number from 0 to 1.
        longest: The longest pause in seconds.
    """

    def __init__(self, chance: Callable[[], float] = _CHANCE, *, longest: float = LONGEST) -> None:
        self._chance = chance
        self._longest = longest
        self._whole = FIRST

    def reset(self) -> None:
        """Start again with the shortest pause, after the server has answered."""
        self._whole = FIRST

    def pause(self) -> float:
        """Return the seconds of the next pause."""
        whole, self._whole = self._whole, min(2 * self._whole, self._longest)
        return whole * (1 + self._chance()) / 2
