"""Which records of runs are kept: limited by number, and by an age that no clock decides."""

from bisect import insort
from collections.abc import Sequence
from datetime import timedelta

from localpuppet.base.formats.names import RunId

# How many newer gaps between runs must be as long as a gap before it counts as time that passed.
AGREEING = 3


def outdated(ids: Sequence[RunId], *, runs: int, days: int) -> list[RunId]:
    """Return the runs that are beyond `runs` in number or `days` in age.

    A run's age is the sum of the gaps between it and the newest run. A gap counts at most as much
    as `AGREEING` newer gaps, so that a clock that jumps removes nothing.

    Args:
        ids: All runs, newest first.
        runs: How many are kept.
        days: How old a kept run may be.
    """
    age = timedelta(0)
    newer_gaps = [age] * AGREEING  # the longest last
    gone = []
    for index, run in enumerate(ids):
        gap = ids[max(index - 1, 0)].time - run.time
        age += min(gap, newer_gaps[-AGREEING])
        insort(newer_gaps, gap)
        if index >= runs or age > timedelta(days=days):
            gone.append(run)
    return gone
