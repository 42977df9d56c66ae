"""Since when the runs of a node fail, and how many failed in a row."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice

from localpuppet.node.runs.run import Outcome, Status

# Runs that are read at most.
MAX_STREAK = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureStreak:
    """Failed runs without a successful one between them.

    Attributes:
        since: When the first of them ended, ISO 8601, UTC; empty without one.
        runs: How many failed; `MAX_STREAK` for that number or more.
    """

    since: str = ""
    runs: int = 0


def failure_streak(history: Iterable[Status]) -> FailureStreak:
    """Return the failed runs since the last success; cancelled and active runs do not count.

    Args:
        history: The runs, newest first.
    """
    since, runs = "", 0
    for status in islice(history, MAX_STREAK):
        if status.succeeded:
            break
        if status.outcome not in (None, Outcome.CANCELLED):
            since, runs = status.finished_at or status.started_at, runs + 1
    return FailureStreak(since=since, runs=runs)
