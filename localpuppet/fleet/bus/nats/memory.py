"""How far back the bus's stream tells of everything that happened, removals too.

A removal leaves a trace that the server keeps for a while. Who knows that a sequence was reached a
short time ago knows that what was written after it is younger than that, and has its trace still.
"""

import time
from collections import deque
from dataclasses import dataclass

# How long the server keeps the trace of a removal at least, and for how long we count on it.
TRACE = 3600
COUNTED = TRACE / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamState:
    """The stream at one moment.

    Attributes:
        last: Its last sequence.
        created: What tells it from one made later.
        keys: Those of its messages below the prefix that was asked for.
    """

    last: int
    created: str
    keys: tuple[str, ...]


class Memory:
    """When which sequences were reached."""

    def __init__(self) -> None:
        self._created = ""
        self._marks: deque[tuple[float, int]] = deque()

    def reached(self, state: StreamState, began: float) -> None:
        """Note where the stream was at a moment, in monotonic seconds."""
        if state.created != self._created:  # another stream: nothing we knew holds for it
            self._created = state.created
            self._marks.clear()
        if not self._marks or began - self._marks[-1][0] > COUNTED / 60:
            self._marks.append((began, state.last))
        while began - self._marks[0][0] > COUNTED:
            self._marks.popleft()

    def reaches(self, after: int, state: StreamState) -> bool:
        """Return whether all removals after a sequence still have their trace."""
        return after <= state.last and any(
            at <= after and time.monotonic() - began < COUNTED for began, at in self._marks
        )
