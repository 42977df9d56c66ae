"""How long to pause before the next attempt: longer each time, and not all at the same moment."""

from collections.abc import Callable
from random import SystemRandom

_CHANCE = SystemRandom().random
FIRST = 0.1
LONGEST = 0.5


class Backoff:
    """Pauses between attempts to reach a server that is away.

    A fleet loses its server at one moment: each pause is a random part, from a half to the whole,
    of one that doubles from `FIRST` to `LONGEST` seconds.

    Args:
        chance: Returns a number from 0 to 1.
    """

    def __init__(self, chance: Callable[[], float] = _CHANCE) -> None:
        self._chance = chance
        self._whole = FIRST

    def reset(self) -> None:
        """Begin anew: the server was there."""
        self._whole = FIRST

    def pause(self) -> float:
        """Return the seconds of the next pause."""
        whole, self._whole = self._whole, min(2 * self._whole, LONGEST)
        return whole * (1 + self._chance()) / 2
