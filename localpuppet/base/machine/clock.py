"""The machine's clocks, and its present boot."""

import time
from datetime import UTC, datetime
from pathlib import Path


def seconds_since_boot() -> float:
    """Return seconds from a monotonic clock that also counts while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def boot_id() -> str:
    """Return the kernel's id of the present boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()


class SystemClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        """Return the time of day in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds from a clock that never goes back."""
        return time.monotonic()
