"""Rows of nodes: what of a presence is taken, outcomes, and when a node is late."""

import json
from dataclasses import replace
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.converter import from_record, to_record
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.values import Json
from localpuppet.fleet.bus.bus_limits import MAX_PRESENCE_HOLDS, MAX_PRESENCE_TEXT
from localpuppet.fleet.inventory.presence import (
    GRACE,
    NOT_TRUSTED,
    OTHER_AGENT,
    NodeRow,
    due,
    is_older,
    splay,
)
from localpuppet.fleet.inventory.run_end import Kind, newest
from localpuppet.node.puppet.fault import FailureCause
from localpuppet.node.runs.run import Category, Outcome, RefusalKind
from tests.fleet.make import an_end
from tests.web.make import believed, run_id, status

NOW = 1_795_000_000.0


def row(**more: Any) -> NodeRow:
    return NodeRow.of_presence(
        "a.example.com", believed(status("a.example.com", NOW - 60, **more)), now=NOW
    )


def test_a_row_has_the_values_that_the_node_publishes() -> None:
    found = row(state="applying", cause="timer")
    assert (found.state, found.cause, found.outcome) == ("applying", "timer", Kind.UNCHANGED)
    seen = (found.release, found.run, found.finished_at)
    assert seen == ("web/tags/r7", run_id(NOW - 60), NOW - 60)
    assert from_record(NodeRow, json.loads(json.dumps(to_record(found)))) == found


@pytest.mark.parametrize(
    ("assignment", "by"),
    [({"by": "choria=alice", "serial": 3}, "choria=alice"), (None, ""), ("x", ""), ({"by": 1}, "")],
)
def test_a_row_names_the_member_that_assigned_the_release(assignment: Json, by: str) -> None:
    assert row(assignment=assignment).assigned_by == by


def test_a_node_with_two_agents_is_not_trusted() -> None:
    found = row(other_agent_since="2026-11-22T11:00:00Z", state="applying")
    assert (found.state, found.reason) == (NOT_TRUSTED, OTHER_AGENT)
    assert row(other_agent_since=None).state != NOT_TRUSTED


def test_no_text_is_long_or_moves_others() -> None:
    evil = "\u202e<script>" + "x" * 10_000_000
    found = row(cause=evil)
    assert len(found.cause) == MAX_PRESENCE_TEXT
    assert "\u202e" not in found.cause
    for name in ("reason", "release", "run"):
        assert row(last_run={name: evil}).state == NOT_TRUSTED


def test_holds_are_limited_and_a_bad_deadline_is_ignored() -> None:
    found = row(holds=[{"owner": "eve", "reason": "x" * 5000, "until": "tomorrow"}] * 1000)
    assert len(found.holds) == MAX_PRESENCE_HOLDS
    assert found.holds[0].until is None
    assert len(found.holds[0].reason) == MAX_PRESENCE_TEXT


@pytest.mark.parametrize("until", ["9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+12:00"])
def test_a_deadline_outside_of_all_years_is_ignored(until: str) -> None:
    assert row(holds=[{"owner": "eve", "reason": "x", "until": until}]).holds[0].until is None


def test_equal_failures_have_the_same_name_on_all_nodes() -> None:
    fault = {"error": "Could not find class …", "resource": "", "place": "init.pp:3"}
    bad = row(last_run={"outcome": "failed", "failure_cause": fault})
    assert (bad.failure, bad.place) == ("Could not find class …", "init.pp:3")
    elsewhere = row(
        last_run={"outcome": "failed", "failure_cause": {**fault, "place": "init.pp:4"}}
    )
    again = row(last_run={"outcome": "failed", "failure_cause": fault})
    assert bad.failure_cause == again.failure_cause != elsewhere.failure_cause
    good = row(last_run={"outcome": "changed", "failure_cause": fault})
    assert (good.error, good.failure, good.failure_cause) == ("", "", "")
    counts = [
        row(last_run={"outcome": "failed", "reason": f"{n} resources failed"}) for n in (2, 31)
    ]
    assert {one.failure for one in counts} == {"… resources failed"}
    assert len({one.failure_cause for one in counts}) == 1


def test_a_node_fails_since_its_first_failed_run_or_now_if_that_cannot_be() -> None:
    bad = row(last_run={"outcome": "failed", "failing_since": NOW - 90, "failed_runs": 3})
    assert (bad.failing_since, bad.failed_runs) == (NOW - 90, 3)
    assert (row().failing_since, row().failed_runs) == (None, 0)
    found = row(last_run={"finished_at": 1e300, "failing_since": 1e299})
    assert (found.finished_at, found.failing_since) == (NOW, NOW)


def test_a_refused_apply_after_a_good_run_is_a_failure() -> None:
    refused = {"outcome": None, "refusal": "invalid_input", "release": "web/tags/r9", "times": 7}
    cause = {"error": "invalid input: … class …", "resource": "", "place": ""}
    found = row(last_run={**refused, "failure_cause": cause})
    assert (found.outcome, found.failure) == (Kind.REFUSED, "invalid input: … class …")
    assert found.run == ""
    assert not found.late(NOW)


def test_history_tells_how_a_node_without_presence_ended() -> None:
    old, bad = an_end(NOW - 90), an_end(NOW - 60, Kind.FAILED, run_interval=10.0)
    found = NodeRow(node="a").with_history([bad, old])
    assert (found.outcome, found.finished_at) == (Kind.FAILED, NOW - 60)
    assert found.late(NOW + 3600)
    assert found.with_history([old, an_end(NOW - 70)]) == found
    assert NodeRow(node="a").with_history([]).outcome is Kind.UNKNOWN


def test_the_most_urgent_nodes_are_first() -> None:
    hold = {"owner": "a", "reason": "b", "until": None}
    nodes = {
        "failed": row(last_run={"outcome": "failed"}),
        "unresponsive": replace(row(), state="unresponsive"),
        "not trusted": NodeRow(node="a", state="not trusted"),
        "late": row(last_run={"finished_at": NOW - 9e6}),
        "on hold": row(holds=[hold]),
        "pending": row(last_run={"noop": True, "category": "noop_pending"}),
        "good": row(),
    }
    assert [row.severity(NOW) for row in nodes.values()] == [*range(7)]


@pytest.mark.parametrize(
    ("release", "than", "older"),
    [
        ("web/tags/r9", "r10", True),
        ("web/tags/r10", "r10", False),
        ("web/tags/r9", "web/tags/r10", True),
        ("db/tags/r9", "web/tags/r10", False),
        ("web/tags/v1.9.2", "v1.10.0", True),
        ("web/trunk", "r10", False),
        ("", "r10", False),
        ("web/tags/r" + "9" * 99, "r" + "9" * 98, False),
    ],
)
def test_a_release_is_older_by_the_numbers_in_its_tag(release: str, than: str, older: bool) -> None:
    assert is_older(release, than) is older


def test_values_of_an_untrusted_node_are_ignored() -> None:
    said: dict[str, Json] = {"node": "a", "state": "not trusted", "last_run": {"run": "x"}}
    said["reason"] = "signed by eve"
    found = NodeRow.of_presence("a", said, now=NOW)
    assert (found.outcome, found.reason, found.run) == (Kind.UNKNOWN, "signed by eve", "")


def test_late_is_by_the_nodes_own_timer_and_never_on_hold() -> None:
    hold = {"owner": "a", "reason": "b", "until": None}
    old = {"finished_at": NOW - 9e6}
    assert row(last_run=old).late(NOW)
    assert not row().late(NOW)
    assert not row(last_run=old, run_interval=None).late(NOW)
    assert not row(last_run=old, holds=[hold]).late(NOW)


@pytest.mark.parametrize("raw", [{}, {"holds": [1], "kind": "failed", "roles": []}, {"kind": "?"}])
def test_a_damaged_row_is_refused(raw: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        from_record(NodeRow, raw)


@pytest.mark.parametrize(
    ("last", "kind"),
    [
        ({"outcome": Outcome.FAILED, "category": Category.NO_REPORT}, Kind.COMPILE_FAILED),
        ({"outcome": Outcome.FAILED, "category": Category.RESOURCES_FAILED}, Kind.FAILED),
        ({"outcome": Outcome.FAILED}, Kind.FAILED),
        ({"outcome": Outcome.TIMED_OUT}, Kind.TIMED_OUT),
        ({"outcome": Outcome.INTERRUPTED}, Kind.INTERRUPTED),
        ({"outcome": Outcome.CANCELLED}, Kind.CANCELLED),
        ({"outcome": Outcome.CHANGED}, Kind.CHANGED),
        ({"outcome": Outcome.CHANGED, "corrective_change": True}, Kind.CORRECTED),
        ({"noop": False}, Kind.UNCHANGED),
        ({"noop": True, "category": Category.NOOP_PENDING}, Kind.NOOP_PENDING),
        ({"noop": True}, Kind.NOOP_CLEAN),
        ({"outcome": None, "refusal": RefusalKind.ENC}, Kind.REFUSED),
    ],
)
def test_each_end_has_a_kind(last: dict[str, Any], kind: Kind) -> None:
    assert an_end(NOW, **last).kind is kind


@pytest.mark.parametrize(
    "field",
    [
        {"started_at": NOW + 1},
        {"started_at": -1e300},
        {"failing_since": NOW + 1},
        {"failing_since": -1.0},
        {"failed_runs": -5},
        {"run_interval": 0.0},
        {"release": "\u202e"},
        {"reason": "x" * 300},
        {"failure_cause": FailureCause(error="\x1b[2J")},
        {"refusal": RefusalKind.ENC},
    ],
)
def test_an_end_that_cannot_be_is_refused(field: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        an_end(NOW, **field)


def test_a_refusal_counts_unless_the_run_takes_place_later() -> None:
    run = an_end(NOW - 60)
    wrong = an_end(NOW, Kind.REFUSED)
    later = [an_end(NOW, Kind.REFUSED, refusal=kind) for kind in ("busy", "on_hold")]
    assert newest([run, *later]) == run
    assert newest([*later, wrong, run]) == wrong
    assert newest(later) is None


def test_a_node_is_due_after_its_interval_and_twice_its_splay() -> None:
    names = [NodeName.parse(f"n{number}.example.com") for number in range(50)]
    for name in names:
        assert due(name, 3600.0) == 3600.0 + max(2 * splay(name, 3600.0), GRACE)
    assert min(due(name, 3600.0) for name in names) >= 3600.0 + GRACE
