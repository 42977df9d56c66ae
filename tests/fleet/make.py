"""Builders of the fleet's values, with good defaults."""

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import fields as dataclass_fields
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import shake_256
from typing import Any, TypeVar

from localpuppet.base.formats.names import NodeName, RunId
from localpuppet.base.formats.values import Json
from localpuppet.fleet.agent.agent import RequestedRunResult, RunCompletion
from localpuppet.fleet.exports.resource import ExportedResource, Offer
from localpuppet.fleet.history import history_records
from localpuppet.fleet.inventory.chunks import digest_of
from localpuppet.fleet.inventory.entry import CatalogSummary, InventoryEntry
from localpuppet.fleet.inventory.presence import NodeRow
from localpuppet.fleet.inventory.run_end import Kind, RunEnd
from localpuppet.fleet.kept_catalogs import CatalogHeader, NodeCatalog, pack_catalog
from localpuppet.fleet.triggers.cause import CauseKind, RunCause, Trigger
from localpuppet.node.puppet.catalog import CanonicalCatalog
from localpuppet.node.puppet.fault import FailureCause
from localpuppet.node.puppet.resources import ResourceResult
from localpuppet.node.runs.run import Category, Outcome, RefusalKind, new_run_id
from tests.fleet.inventory.entries import entry

_Value = TypeVar("_Value")

NODE = NodeName("web01.example")
TODAY = 20_500
UUID = "3f2504e0-4f89-41d3-9a0c-0305e82c3301"


def there(value: _Value | None) -> _Value:
    """Return a value that has to be there."""
    assert value is not None
    return value


def run_id(at: float, random: str = "00aa") -> RunId:
    return new_run_id(datetime.fromtimestamp(at, UTC), random, None)


def a_summary(at: float, **fields: Any) -> history_records.RunSummary:
    plain = history_records.RunSummary(
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
        counts=history_records.RunCounts(total=150),
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


def a_resource(number: int, **fields: Any) -> history_records.ResourceSummary:
    plain = history_records.ResourceSummary(
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
) -> history_records.ResourceSummary:
    """Return a resource of a run, `Type[title]`, without the place of its declaration."""
    type_, _, title = resource.partition("[")
    fields = {"file": "", "line": None, "containing_class": "", **fields}
    return a_resource(0, type=type_, title=title.removesuffix("]"), status=status, **fields)


def a_decision(at: float, **fields: Any) -> history_records.AuditRecord:
    plain = history_records.AuditRecord(
        at=at,
        caller="alice",
        action="run",
        subject="",
        decision=history_records.AuditDecision.ACCEPTED,
        reason="",
        request=f"{int(at)}",
    )
    return replace(plain, **fields)


def a_cause(kind: CauseKind = CauseKind.TIMER, **fields: Any) -> RunCause:
    plain = {"sender": "b.example.com", "uuid": UUID, "timestamp": 1, "expires": None}
    return RunCause(kind=kind, **{**plain, **fields})


def a_trigger(sender: str, *hosts: NodeName, at: float, **fields: Any) -> Trigger:
    """Return a trigger that its sender has just made."""
    me = NodeName(sender)
    plain = {"hostname": me, "hosts": hosts, "timestamp": int(at), "path": (me,)}
    more: dict[str, Any] = {"uuid": UUID, "tags": (), "ttl": 180, "hops": 0, **plain, **fields}
    return Trigger(**more)


def a_day(
    *records: history_records.RunSummary, day: int = TODAY
) -> history_records.HistoryDay[history_records.RunSummary]:
    return history_records.HistoryDay(node=NODE, day=day, records=records, dropped=0)


def noon(minutes: float = 0) -> float:
    return TODAY * history_records.DAY + history_records.DAY / 2 + 60 * minutes


def resource(kind: str, title: str, *tags: str, **parameters: Any) -> ExportedResource:
    """Return an exported resource, as a catalog of a module `app` has it."""
    return ExportedResource(
        type=kind,
        title=title,
        tags=tuple(sorted({"app", *tags})),
        file="/etc/puppet/modules/app/init.pp",
        line=3,
        parameters=parameters,
    )


def offer(node: str, kind: str, title: str, *tags: str, **parameters: Any) -> Offer:
    return Offer(node=f"{node}.example.com", resource=resource(kind, title, *tags, **parameters))


def random_text(size: int, seed: int = 0) -> str:
    """Return text, the same each time, that does not pack into fewer than `size` bytes."""
    return b64encode(shake_256(b"%d" % seed).digest(size)).decode()


RUN = RunId("20261120T140000.000000Z-abcd")


def a_catalog(node: NodeName, **files: Mapping[str, Json]) -> NodeCatalog:
    """Return a catalog with a file for each name, with these parameters."""
    resources: list[dict[str, Any]] = [
        {"type": "File", "title": f"/{name}", "tags": ["file"], "parameters": parameters}
        for name, parameters in files.items()
    ]
    resources += [{"type": "Class", "title": "Main", "tags": [], "file": "/etc/a.pp", "line": 1}]
    catalog = CanonicalCatalog.of(
        {
            "name": node,
            "environment": "production",
            "classes": ["main"],
            "resources": resources,
            "edges": [{"source": "Class[Main]", "target": f"File[/{name}]"} for name in files],
        }
    )
    packed = pack_catalog(catalog)
    header = CatalogHeader(
        run=RUN,
        at=1_800_000_000.5,
        release="web/tags/r1",
        environment="production",
        commit="a" * 40,
        digest=digest_of(packed),
        size=len(packed),
    )
    return NodeCatalog.checked(node, header, packed)


def entry_with(catalog: NodeCatalog) -> InventoryEntry:
    summary = CatalogSummary(digest=catalog.header.digest, size=catalog.header.size)
    return entry(catalog.node, at=catalog.header.at, catalog=summary)


def completed(outcome: str = "", **fields: Any) -> RunCompletion:
    """Return the completion of a run that ended."""
    return RunCompletion(result=RequestedRunResult.OVER, outcome=outcome, **fields)


def busy(reason: str = "busy", **fields: Any) -> RunCompletion:
    """Return the completion of a run that has to wait."""
    return RunCompletion(result=RequestedRunResult.BUSY, reason=reason, **fields)


def impossible(reason: str = "") -> RunCompletion:
    """Return the completion of a run that cannot start."""
    return RunCompletion(result=RequestedRunResult.IMPOSSIBLE, reason=reason)
