"""Which calls of a process fail in a crash test: a sample with the tests, each one at night."""

import os

FULL = os.environ.get("CRASH_FULL") == "1"


def crash_points(total: int, size: int) -> list[int]:
    """Return the numbers of the calls that fail, of `total`: `size` of them, evenly spread."""
    if FULL or size >= total:
        return list(range(1, total + 1))
    return [1 + total * (2 * number + 1) // (2 * size) for number in range(size)]
