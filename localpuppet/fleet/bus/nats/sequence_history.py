"""How far back the stream's history is complete, removals included.

The server keeps the marker of a removal for `TRACE` seconds. If the stream reached a sequence
recently, everything written after it is younger, and all its markers still exist.
"""

import time
from collections import deque

from localpuppet.base.value import Value

# Seconds that the server keeps the marker of a removal, and that this module counts on.
TRACE = 3600
COUNTED = TRACE / 2


class StreamState(Value):
    """The state of the stream at one moment.

    Attributes:
        last: Its last sequence.
        created: Its creation time, which distinguishes it from a later stream.
        keys: The keys of its messages below the requested prefix.
    """

    last: int
    created: str
    keys: tuple[str, ...]


class SequenceHistory:
    """Records when the stream reached which sequences."""

    def __init__(self) -> None:
        self._created = ""
        self._marks: deque[tuple[float, int]] = deque()

    def reached(self, state: StreamState, began: float) -> None:
        """Record the state of the stream at a moment, in monotonic seconds."""
        if state.created != self._created:  # another stream: earlier marks are void
            self._created = state.created
            self._marks.clear()
        if not self._marks or began - self._marks[-1][0] > COUNTED / 60:
            self._marks.append((began, state.last))
        while began - self._marks[0][0] > COUNTED:
            self._marks.popleft()

    def reaches(self, after: int, state: StreamState) -> bool:
        """Return whether the markers of all removals after a sequence still exist."""
        return after <= state.last and any(
            at <= after and time.monotonic() - began < COUNTED for began, at in self._marks
        )
