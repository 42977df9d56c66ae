"""The id of a run as numbers: a day, and a moment that counts from the beginning of that day.

- Any day can be used: the memory uses the day on which the run ended, so the moment of a run that
  was requested on an earlier day is negative.
- Of two runs of a day, the later one has the larger moment.
"""

from datetime import UTC, datetime, timedelta

from localpuppet.base.formats.names import RunId
from localpuppet.fleet.history.day import day_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_OF_A_DAY = timedelta(days=1) // _MICROSECOND
# Bits of the four random digits of an id.
_RANDOM = 16


# The moments of a day.
MOMENTS = _OF_A_DAY << _RANDOM


def number_of(run: RunId) -> int:
    """Return the number of a run's id; the moment of day 0."""
    return (run.time - _EPOCH) // _MICROSECOND << _RANDOM | int(run.rpartition("-")[2], 16)


def parts_of(run: RunId) -> tuple[int, int]:
    """Return the day on which a run was requested, days since 1970, and the moment."""
    return divmod(number_of(run), MOMENTS)


def filed(run: RunId, ended: float) -> tuple[int, int]:
    """Return the day on which a run ended, and the moment; see `run_table.TABLES`.

    Args:
        run: Its id.
        ended: When it ended, seconds since 1970; not before it was requested.
    """
    day = max(parts_of(run)[0], day_of(ended))
    return day, number_of(run) - day * MOMENTS


def run_of(day: int, moment: int) -> RunId:
    """Return the id of a run with a moment that counts from the beginning of a day."""
    time = _EPOCH + timedelta(days=day, microseconds=moment >> _RANDOM)
    # Its year by itself: what `%Y` has of one before 1000 depends on the C library.
    return RunId(f"{time.year:04}{time:%m%dT%H%M%S.%f}Z-{moment & (1 << _RANDOM) - 1:04x}")
