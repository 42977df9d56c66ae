"""Records of history for tests."""

from dataclasses import fields as dataclass_fields
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from localpuppet.base.formats.names import NodeName, RunId
from localpuppet.fleet.history.audit_record import AuditDecision, AuditRecord
from localpuppet.fleet.history.day import DAY, HistoryDay
from localpuppet.fleet.history.run_summary import ResourceSummary, RunCounts, RunSummary
from localpuppet.fleet.inventory.node_row import NodeRow
from localpuppet.fleet.inventory.run_end import Kind, RunEnd
from localpuppet.node.puppet.fault import FailureCause
from localpuppet.node.puppet.resources import ResourceResult
from localpuppet.node.runs.reason import Category
from localpuppet.node.runs.run import Outcome, RefusalKind, new_run_id

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
        started_at=max(0.0, at - 5),
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


_FIELDS: dict[Kind, dict[str, Any]] = {
    Kind.COMPILE_FAILED: {"outcome": Outcome.FAILED, "category": Category.NO_REPORT},
    Kind.FAILED: {"outcome": Outcome.FAILED, "category": Category.RESOURCES_FAILED},
    Kind.REFUSED: {"outcome": None, "refusal": RefusalKind.INVALID_INPUT},
    Kind.CORRECTED: {"outcome": Outcome.CHANGED, "corrective_change": True},
    Kind.NOOP_PENDING: {"noop": True, "category": Category.NOOP_PENDING},
    Kind.NOOP_CLEAN: {"noop": True},
}


def an_end(at: float, kind: Kind = Kind.UNCHANGED, **fields: Any) -> RunEnd:
    """Return the end of a run with a result."""
    by_name = {} if kind in _FIELDS else {"outcome": Outcome(kind.replace(" ", "_"))}
    return replace(a_summary(at).end, **{"started_at": at, **_FIELDS.get(kind, by_name), **fields})


def a_row(node: str, outcome: Kind | None = None, **fields: Any) -> NodeRow:
    """Return a node; fields that only a run has are those of the end of its last run."""
    cause = {key: fields.pop(key) for key in ("error", "resource", "place") if key in fields}
    names = {field.name for field in dataclass_fields(RunEnd)} - {"run_interval"}
    of_run = {key: fields.pop(key) for key in [*fields] if key in names}
    if outcome in (Kind.NONE, Kind.UNKNOWN) or not (outcome or of_run or cause):
        return NodeRow(node=node, **fields, problem=of_run.get("reason", ""))
    at = of_run.pop("finished_at", 1_795_000_000.0)
    if cause:
        of_run["failure_cause"] = FailureCause(**{"error": "", **cause})
    end = an_end(at, outcome or Kind.UNCHANGED, **{"release": "", **of_run})
    return NodeRow(node=node, **fields, last=end)


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


def a_part(
    resource: str, *, status: ResourceResult = ResourceResult.CHANGED, **fields: Any
) -> ResourceSummary:
    """Return a resource of a run, `Type[title]`, without the place of its declaration."""
    type_, _, title = resource.partition("[")
    fields = {"file": "", "line": None, "containing_class": "", **fields}
    return a_resource(0, type=type_, title=title.removesuffix("]"), status=status, **fields)


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
