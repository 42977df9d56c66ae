"""Splits the id of a run into the number of a day and a number within the day, for the memory.

Of two runs, the later one has the larger pair of numbers.
"""

from datetime import UTC, datetime, timedelta

from localpuppet.base.formats.names import RunId

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_OF_A_DAY = timedelta(days=1) // _MICROSECOND
# Bits of the four random digits of an id.
_RANDOM = 16


def parts_of(run: RunId) -> tuple[int, int]:
    """Return the number of a run's day since 1970, and one for the rest of its id."""
    day, rest = divmod((run.time - _EPOCH) // _MICROSECOND, _OF_A_DAY)
    return day, rest << _RANDOM | int(run.rpartition("-")[2], 16)


def run_of(day: int, moment: int) -> RunId:
    """Return the id that `parts_of` has split."""
    time = _EPOCH + timedelta(days=day, microseconds=moment >> _RANDOM)
    # Its year by itself: what `%Y` has of one before 1000 depends on the C library.
    return RunId(f"{time.year:04}{time:%m%dT%H%M%S.%f}Z-{moment & (1 << _RANDOM) - 1:04x}")
