"""Summaries of recorded runs and of refused applies: what they have, and what stays on the node."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.formats.converter import to_record
from localpuppet.base.formats.times import parse_time, show_time
from localpuppet.fleet.history.history_records import RunSummary
from localpuppet.fleet.history.node_history import interrupted_before, recent_runs, summarise_run
from localpuppet.fleet.inventory.run_end import RunEnd
from localpuppet.node.puppet.fault import FailureCause
from localpuppet.node.puppet.report import Resources
from localpuppet.node.puppet.resources import ResourceResult
from localpuppet.node.runs.run import Attempt, Category, Outcome, RefusalKind, RunState
from localpuppet.node.runs.run_records import RunDirectory
from tests.rigs.recorded import PUPPET, Recorded

CANARY = "canary-90210"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def site(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path)


def _reported(reference: str, **fields: Any) -> dict[str, Any]:
    event = {"property": "content", "message": CANARY, "previous_value": CANARY, "status": "x"}
    file = "/srv/releases/r1/modules/profile/manifests/db.pp"
    plain = {"resource": reference, "file": file, "line": 3, "time": "1", "events": [event]}
    return {**plain, **fields}


def _failed(site: Recorded) -> RunDirectory:
    run = site.begin()
    resources = [
        _reported(
            "File[/etc/motd]",
            changed=True,
            corrective_change=True,
            containment_path=["Stage[main]", "Profile", "Profile::Db", "File[/etc/motd]"],
        ),
        _reported(
            f"Exec[mysql -p{CANARY}]",
            failed=True,
            containment_path=["Stage[main]", "Main", f"Db::User[{CANARY}]", f"Exec[{CANARY}]"],
        ),
        _reported("Service[mysqld]", skipped=True),
        _reported("Package[vim]"),
    ]
    statuses = {one["resource"]: one for one in resources}
    run.report.write_text(json.dumps({"resource_statuses": statuses}))
    cause = FailureCause(error="Could not start", resource="Exec[…]", place="a.pp:3")
    run.close(
        site.status(
            run,
            state=RunState.FINISHED,
            outcome=Outcome.FAILED,
            reason=f"1 resource failed: {CANARY}",
            finished_at=show_time(site.clock.now()),
            puppet_started=True,
            corrective_change=True,
            resources=Resources(total=4, changed=1, failed=1, skipped=1),
            failure_cause=cause.to_dict(),
        )
    )
    return run


def summarised(site: Recorded, run: RunDirectory, *, commit: str | None) -> RunSummary:
    status = site.records.status(run)
    end = RunEnd.of_run(status, site.records.streak(status), None)
    return summarise_run(run, status, end, commit=commit)


def test_a_failed_run_is_summarised_without_values(site: Recorded) -> None:
    run = _failed(site)
    found = summarised(site, run, commit=COMMIT)
    assert CANARY not in json.dumps(to_record(found))
    assert (found.run, found.release, found.commit) == (run.id, "app/tags/r1", COMMIT)
    assert (found.environment, found.cause) == ("production", "manual")
    assert (found.outcome, found.category) == (Outcome.FAILED, Category.RESOURCES_FAILED)
    assert found.reason == "1 resource failed: Exec[…] (a.pp:3): Could not start"
    assert found.corrective_change
    assert (found.counts.total, found.counts.failed, found.counts.corrective) == (4, 1, 1)
    assert found.failure_cause is not None
    assert [(one.type, one.title, one.status) for one in found.resources] == [
        ("Exec", "…", ResourceResult.FAILED),
        ("File", "/etc/motd", ResourceResult.CHANGED),
        ("Service", "mysqld", ResourceResult.SKIPPED),
    ]
    assert [one.corrective_change for one in found.resources] == [False, True, False]
    assert [one.containing_class for one in found.resources] == ["Main", "Profile::Db", ""]
    assert {(one.file, one.line) for one in found.resources} == {("profile/manifests/db.pp", 3)}


@pytest.mark.parametrize("damage", ["request.json", "report.json"])
def test_a_damaged_or_lost_record_has_a_summary(site: Recorded, damage: str) -> None:
    run = _failed(site)
    (run.path / damage).write_text("{")
    found = summarised(site, run, commit=None)
    assert (found.outcome, found.cause == "") == (Outcome.FAILED, damage == "request.json")
    assert bool(found.resources) == (damage == "request.json")
    run.status.unlink()
    lost = summarised(site, run, commit=None)
    assert (lost.outcome, lost.category) == (Outcome.INTERRUPTED, Category.INTERRUPTED)


def test_a_clock_that_was_set_back_makes_no_run_end_before_its_start(site: Recorded) -> None:
    run = site.begin()
    ended = show_time(parse_time("2026-11-19T00:00:00Z"))
    run.close(site.status(run, state=RunState.FINISHED, outcome=Outcome.CHANGED, finished_at=ended))
    found = summarised(site, run, commit=None)
    assert found.started_at == found.finished_at == parse_time(ended).timestamp()


def _refused(**fields: Any) -> Attempt:
    plain: dict[str, Any] = {
        "at": "2026-11-20T15:00:00.000000Z",
        "since": "2026-11-20T14:00:00.000000Z",
        "times": 3,
        "refusal": RefusalKind.ON_HOLD,
        "reason": f"on hold: {CANARY}",
        "release": "app/tags/r1",
        "input": "/etc/localpuppet/input.yaml",
        "user": "root",
        "cause": "timer",
        "noop": False,
    }
    return Attempt(**{**plain, **fields})


def refused(attempt: Attempt) -> RunEnd:
    return RunEnd.of_attempt(attempt, None, None)


def test_a_refusal_after_failed_runs_continues_their_series(site: Recorded) -> None:
    _failed(site)
    status = site.records.status(_failed(site))
    before = RunEnd.of_run(status, site.records.streak(status), 600.0)
    later = show_time(site.clock.now() + timedelta(hours=1))
    found = RunEnd.of_attempt(_refused(at=later, since=later, release="", times=3), before, 600.0)
    assert (before.failed_runs, found.failed_runs) == (2, 5)
    assert found.failing_since == before.failing_since is not None
    assert (found.release, found.run_interval) == (before.release, 600.0)


def test_equal_refusals_in_a_row_share_a_record_without_the_users_reason() -> None:
    first = refused(_refused(at="2026-11-20T14:00:00.000000Z", times=1))
    last = refused(_refused())
    assert first.run == last.run
    assert (last.times, last.finished_at - last.started_at) == (3, 3600)
    assert (last.outcome, last.refusal) == (None, RefusalKind.ON_HOLD)
    assert last.reason == "the node is on hold"
    assert CANARY not in json.dumps(to_record(last))
    assert refused(_refused(refusal=RefusalKind.BUSY)).run != last.run


@pytest.mark.parametrize("refusal", RefusalKind)
def test_each_kind_of_refusal_has_a_sentence(refusal: RefusalKind) -> None:
    assert refused(_refused(refusal=refusal)).reason


def test_the_first_history_has_the_runs_of_a_week(site: Recorded) -> None:
    old = site.finish(site.begin())
    site.clock.advance(6.5 * 86400)
    recent = site.finish(site.begin())
    site.clock.advance(86400)
    running = site.begin()
    found = [run.id for run, _ in recent_runs(site.records)]
    assert found == [recent.id]
    assert {old.id, running.id}.isdisjoint(found)


def test_interrupted_runs_are_found_by_the_next_run_that_ends(site: Recorded) -> None:
    site.finish(site.begin())
    died = [site.begin(supervisor=asdict_of_dead()) for _ in range(2)]
    found = [run.id for run, _ in interrupted_before(site.records, site.begin())]
    assert found == [run.id for run in reversed(died)]


def asdict_of_dead() -> dict[str, Any]:
    return {"pid": PUPPET.pid, "boot_id": PUPPET.boot_id, "started": PUPPET.started}
