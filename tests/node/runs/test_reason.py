"""The reasons of results, in texts that may leave the node."""

from dataclasses import replace

import pytest

from localpuppet.base.formats.names import RunId
from localpuppet.node.puppet.report import Resources
from localpuppet.node.runs.reason import Category, category, public_reason, published
from localpuppet.node.runs.run import Outcome, RunState, Status

WORDS = "Error: got 'a secret'"


def status(outcome: Outcome | None, **more: object) -> Status:
    fields: dict[str, object] = {
        "id": RunId("20261120T140312.482913Z-7f3a"),
        "state": RunState.FINISHED if outcome else RunState.RUNNING,
        "outcome": outcome,
        "release": "foo/tags/r1",
        "started_at": "2026-11-20T14:03:12Z",
        "puppet_started": True,
        "reason": WORDS,
    }
    return Status(**{**fields, **more})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("case", "why", "sentence"),
    [
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
    ],
)
def test_each_result_has_a_category_and_a_public_reason(
    case: Status, why: str, sentence: str
) -> None:
    assert str(category(case)) == why
    assert public_reason(case).startswith(sentence)
    assert bool(public_reason(case)) == bool(why)


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


def test_every_category_occurs() -> None:
    assert {str(one) for one in Category} == {
        str(category(case))
        for case in (
            status(Outcome.CHANGED),
            status(Outcome.UNCHANGED, noop_pending=True),
            status(Outcome.FAILED, resources=Resources(failed=1)),
            status(Outcome.FAILED, resources=Resources()),
            status(Outcome.FAILED),
            status(Outcome.FAILED, signal=9),
            status(Outcome.FAILED, puppet_started=False),
            status(Outcome.TIMED_OUT),
            status(Outcome.CANCELLED),
            status(Outcome.INTERRUPTED),
        )
    }
