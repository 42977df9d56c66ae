"""Records of history for tests."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from localpuppet.base.formats.names import NodeName, RunId
from localpuppet.fleet.history.audit_record import AuditDecision, AuditRecord
from localpuppet.fleet.history.day import DAY, HistoryDay
from localpuppet.fleet.history.run_summary import ResourceSummary, RunCounts, RunSummary
from localpuppet.node.puppet.resources import ResourceResult
from localpuppet.node.runs.reason import Category
from localpuppet.node.runs.run import Outcome, new_run_id

NODE = NodeName("web01.example")
TODAY = 20_500


def run_id(at: float, random: str = "00aa") -> RunId:
    return new_run_id(datetime.fromtimestamp(at, UTC), random, None)


def a_summary(at: float, **fields: Any) -> RunSummary:
    plain = RunSummary(
        run=run_id(at),
        release="shop/tags/r1",
        commit="0" * 40,
        environment="production",
        cause="timer",
        started_at=at - 5,
        finished_at=at,
        outcome=Outcome.UNCHANGED,
        category=Category.NONE,
        refusal=None,
        times=1,
        noop=False,
        corrective_change=False,
        reason="",
        counts=RunCounts(total=150),
        resources=(),
        more=0,
        failure_cause=None,
    )
    return replace(plain, **fields)


def a_resource(number: int, **fields: Any) -> ResourceSummary:
    plain = ResourceSummary(
        type="File",
        title=f"/etc/shop/{number}.conf",
        status=ResourceResult.CHANGED,
        file="profile/manifests/shop.pp",
        line=number,
        corrective_change=False,
        containing_class="Profile::Shop",
    )
    return replace(plain, **fields)


def a_decision(at: float, **fields: Any) -> AuditRecord:
    plain = AuditRecord(
        at=at,
        caller="alice",
        action="run",
        subject="",
        decision=AuditDecision.ACCEPTED,
        reason="",
        request=f"{int(at)}",
    )
    return replace(plain, **fields)


def a_day(*records: RunSummary, day: int = TODAY) -> HistoryDay[RunSummary]:
    return HistoryDay(node=NODE, day=day, records=records, dropped=0)


def noon(minutes: float = 0) -> float:
    return TODAY * DAY + DAY / 2 + 60 * minutes
