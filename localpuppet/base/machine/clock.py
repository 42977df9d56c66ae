"""The machine's clocks."""

import time
from datetime import UTC, datetime


def seconds_since_boot() -> float:
    """Return seconds from a monotonic clock that also counts while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SystemClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        """Return the time of day in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds from a clock that never goes back."""
        return time.monotonic()
