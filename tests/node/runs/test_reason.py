"""The reasons of results, in texts that may leave the node."""

from dataclasses import replace
from typing import Any

import pytest

from localpuppet.node.puppet.report import Resources
from localpuppet.node.runs.run import (
    MAX_STREAK,
    Category,
    FailureStreak,
    Outcome,
    Status,
    category,
    failure_streak,
    public_reason,
    published,
)
from tests.node import make

WORDS = "Error: got 'a secret'"


def status(outcome: Outcome | None, **more: Any) -> Status:
    return make.status(outcome, **{"puppet_started": True, "reason": WORDS, **more})


RESULTS: list[tuple[Status, str, str]] = [
    (status(None), "", ""),
    (status(Outcome.CHANGED), "", ""),
    (
        status(Outcome.UNCHANGED, noop_pending=True, resources=Resources(out_of_sync=1)),
        "noop_pending",
        "noop: 1 resource would change",
    ),
    (
        status(Outcome.FAILED, resources=Resources(failed=3)),
        "resources_failed",
        "3 resources failed",
    ),
    (status(Outcome.FAILED, resources=Resources()), "run_failed", "Puppet failed, or"),
    (status(Outcome.FAILED), "no_report", "Puppet wrote no report"),
    (status(Outcome.FAILED, signal=9), "killed", "a signal killed Puppet"),
    (status(Outcome.FAILED, puppet_started=False), "not_started", "Puppet was not started"),
    (status(Outcome.TIMED_OUT), "timed_out", "ran longer"),
    (status(Outcome.CANCELLED), "cancelled", "cancelled"),
    (status(Outcome.INTERRUPTED), "interrupted", "the supervisor died"),
]


@pytest.mark.parametrize(("case", "why", "sentence"), RESULTS)
def test_each_result_has_a_public_reason(case: Status, why: str, sentence: str) -> None:
    assert str(category(case)) == why
    assert public_reason(case).startswith(sentence)
    assert bool(public_reason(case)) == bool(why)
    assert {why for _, why, _ in RESULTS} == {str(one) for one in Category}


@pytest.mark.parametrize("outcome", [None, *Outcome])
def test_the_published_status_has_no_text_of_puppet(outcome: Outcome | None) -> None:
    assert WORDS not in str(published(status(outcome)).to_dict())


@pytest.mark.parametrize(
    ("cause", "sentence"),
    [
        (
            {"error": "Could not find class …", "resource": "", "place": "web/manifests/init.pp:3"},
            "compile failed (web/manifests/init.pp:3): Could not find class …",
        ),
        (
            {"error": "… returned …", "resource": "Exec[a]", "place": "init.pp:3"},
            "Puppet wrote no report: Exec[a] (init.pp:3): … returned …",
        ),
        ({"error": "… denied", "resource": "", "place": ""}, "compile failed: … denied"),
    ],
)
def test_the_published_reason_has_the_failure_cause(cause: dict[str, str], sentence: str) -> None:
    assert public_reason(status(Outcome.FAILED, failure_cause=cause)) == sentence


def test_the_failure_cause_is_published() -> None:
    cause = {"error": "Could not find class", "resource": "", "place": ""}
    failed = status(Outcome.FAILED, failure_cause=cause, corrective_change=True)
    assert published(failed) == replace(failed, reason=public_reason(failed))


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
