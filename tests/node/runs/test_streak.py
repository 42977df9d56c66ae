"""The failure streak: the number of failed runs in a row, and its start."""

from dataclasses import replace

from localpuppet.node.runs.run import MAX_STREAK, FailureStreak, Outcome, Status, failure_streak
from tests.node.runs.test_reason import status


def ended(outcome: Outcome | None, minute: int) -> Status:
    return replace(status(outcome), finished_at=f"2026-11-20T14:{minute:02}:00Z")


def test_failed_runs_are_counted_since_the_last_success() -> None:
    history = [
        ended(None, 9),
        ended(Outcome.FAILED, 8),
        ended(Outcome.CANCELLED, 7),
        ended(Outcome.TIMED_OUT, 6),
        ended(Outcome.UNCHANGED, 5),
        ended(Outcome.FAILED, 4),
    ]
    assert failure_streak(history) == FailureStreak(since="2026-11-20T14:06:00Z", runs=2)
    assert failure_streak(history[4:]) == FailureStreak()


def test_the_number_of_read_runs_is_limited() -> None:
    endless = iter(lambda: ended(Outcome.FAILED, 1), None)
    assert failure_streak(endless).runs == MAX_STREAK
