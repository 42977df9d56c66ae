"""Presence: the state of nodes as their agents publish it, and a node as a row of a list.

- An entry without a form problem can be shown without further type checks.
- The signer may be a compromised node: the signature proves who published the entry, not that it is
  true.
- A listing detects expired entries, also in a store that does not report them (NATS).
- No text of a row is longer than `MAX_PRESENCE_TEXT` or has control or bidirectional characters.
"""

import asyncio
import hashlib
import math
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import lru_cache
from typing import Any, Protocol

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, UnavailableError
from localpuppet.base.formats.converter import from_record
from localpuppet.base.formats.names import NodeName, RunId
from localpuppet.base.formats.schema_number import schema_problem
from localpuppet.base.formats.strict_json import parse_object
from localpuppet.base.formats.text import listed, shortened
from localpuppet.base.formats.times import parse_time
from localpuppet.base.formats.values import Json, mapping_of, type_names
from localpuppet.base.value import Value
from localpuppet.fleet.bus.bus_limits import (
    MAX_PRESENCE_HOLDS,
    MAX_PRESENCE_TEXT,
    MAX_SIGNED_PAYLOAD,
)
from localpuppet.fleet.bus.key_value import Change, KeyListing, KeyValue
from localpuppet.fleet.bus.layout import PRESENCE
from localpuppet.fleet.bus.store_calls import unending
from localpuppet.fleet.inventory.entry import AHEAD
from localpuppet.fleet.inventory.run_end import Kind, RunEnd, newest
from localpuppet.fleet.trust.signing import MessageKind, Verifier
from localpuppet.node.runs.holds import rollout_of

PRESENCE_TTL = 60.0
FAREWELL_TTL = 3.0
SCHEMA = 1
_TEXTS = ("node", "state")
_TEXTS_OR_NULL = listed("at version cause blocked release_digest other_agent_since started_at")
# Why the state of a node with two agents is not trusted.
OTHER_AGENT = "another agent has its name and key: one of two machines is a copy"
_OF_HOLD = ("owner", "reason", "since", "until")


def form_problem(entry: Mapping[str, Json]) -> str | None:
    """Return what is malformed in an entry, or `None`; unknown fields are allowed."""
    if problem := schema_problem(entry.get("schema"), SCHEMA):
        return problem
    holds = entry.get("holds", [])
    if not isinstance(holds, list):
        return _wrong("holds", holds)
    for place, hold in enumerate(holds):
        if not isinstance(hold, dict):
            return _wrong(f"holds[{place}]", hold)
    for key, number, kinds in (
        ("waiting", entry.get("waiting", 0), int),
        ("run_interval", entry.get("run_interval"), int | float | None),
    ):
        if not isinstance(number, kinds) or isinstance(number, bool):
            return _wrong(key, number)
    bad_field = _first_not_text(entry, _TEXTS, _TEXTS_OR_NULL)
    for hold in holds:
        bad_field = bad_field or _first_not_text(mapping_of(hold), (), _OF_HOLD)
    return bad_field or _no_time("started_at", entry.get("started_at"))


def _first_not_text(
    entry: Mapping[str, Json], needed: tuple[str, ...], others: tuple[str, ...]
) -> str | None:
    for key in (*needed, *others):
        value = entry.get(key)
        if not isinstance(value, str) and (key in needed or value is not None):
            return _wrong(key, value)
    return None


def _no_time(key: str, text: Json) -> str | None:
    try:
        if isinstance(text, str) and text and datetime.fromisoformat(text).tzinfo is None:
            return f"its {key} has no zone"
    except ValueError:
        return f"its {key} is not a time"
    return None


def _wrong(key: str, value: Json) -> str:
    return f"its {key} is a {type_names[type(value)]}"


async def announce(
    kv: KeyValue, node: NodeName, token: bytes, *, ttl: float = PRESENCE_TTL
) -> None:
    """Publish a node's state, which expires unless it is published again within `ttl` seconds."""
    await kv.put(f"{PRESENCE}{node}", token, ttl=ttl)


@dataclass(slots=True, eq=False)
class PresenceWriter:
    """Publishes one node's state repeatedly; calls `contended` if another process wrote it."""

    kv: KeyValue
    node: NodeName
    contended: Callable[[], Awaitable[None]]
    _revision: int = field(default=0, init=False)

    async def announce(self, describe: Callable[[], Awaitable[bytes]]) -> None:
        """Publish the state that `describe` returns; see the function of the same name."""
        key, token = f"{PRESENCE}{self.node}", await describe()
        if self._revision:
            written = await self.kv.set_if_revision(key, token, self._revision, ttl=PRESENCE_TTL)
            if written is not None:
                self._revision = written
                return
            entry = await self.kv.get(key)  # none: it has expired
            if entry is not None and entry.revision > self._revision and entry.value != token:
                await self.contended()
                token = await describe()
        self._revision = await self.kv.put(key, token, ttl=PRESENCE_TTL)


async def nodes(kv: KeyValue) -> dict[str, bytes]:
    """Return the presence entries of the nodes that are online, by name; not verified here."""
    listing = await kv.list(PRESENCE)
    return {entry.key.removeprefix(PRESENCE): entry.value for entry in listing.entries}


def believe(verifier: Verifier, name: str, token: bytes) -> dict[str, Any]:
    """Return the state that a node published, or a state with the reason to reject it.

    Its `last_run` is a `RunEnd`, or `None`.
    """
    try:
        signed = verifier.verify(token, MessageKind.PRESENCE)
        status: dict[str, Any] = dict(
            parse_object(signed.payload, where=name, limit=MAX_SIGNED_PAYLOAD)
        )
        if signed.signer != name or status.get("node") != name:
            return _rejected(name, f"signed by {signed.signer}")
        problem = form_problem(status)
        last = status.get("last_run")
        status["last_run"] = None if last is None else from_record(RunEnd, last)
    except LocalpuppetError as error:
        return _rejected(name, str(error))
    return _rejected(name, problem) if problem else status


def _rejected(name: str, why: str) -> dict[str, Any]:
    return {"schema": SCHEMA, "node": name, "state": NOT_TRUSTED, "reason": why}


# Seconds between listings.
LOOK_AGAIN = 10.0


class PresenceBoard(Protocol):
    """Receives presence entries that are not verified yet."""

    def take(self, change: Change) -> None:
        """Process a change."""

    def full(self, reason: str) -> None:
        """Note that the bus has no room: entries that expire are no sign of their nodes."""

    def miss(self, names: AbstractSet[str], revision: int) -> None:
        """Remove nodes that a listing lacks, unless their entry is newer."""


async def listen(kv: KeyValue, board: PresenceBoard) -> None:
    """Pass each change to a board, without end.

    Call it in a separate task: a failed group leaves its task marked as cancelled.

    Raises:
        ExceptionGroup: The bus is unreachable: a group of `UnavailableError`.
    """
    async with asyncio.TaskGroup() as group:
        group.create_task(unending(_watch(kv, board)))
        group.create_task(unending(_look(kv, board)))


async def _watch(kv: KeyValue, board: PresenceBoard) -> None:
    async with aclosing(kv.watch(PRESENCE)) as changes:
        async for change in changes:
            board.take(change)


async def _look(kv: KeyValue, board: PresenceBoard) -> None:
    while True:
        await asyncio.sleep(LOOK_AGAIN)
        if full := await kv.fullness():
            board.full(full)
        else:
            board.miss(*await _present(kv))


async def _present(kv: KeyValue) -> tuple[AbstractSet[str], int]:
    """Return the nodes in a listing, and its revision, with the memory of one part."""
    names: set[str] = set()
    async with aclosing(kv.watch(PRESENCE, parts=True)) as changes:
        async for change in changes:
            if isinstance(change, KeyListing):
                names.update(entry.key.removeprefix(PRESENCE) for entry in change.entries)
                if not change.more:
                    return names, change.revision
    raise UnavailableError("the listing ended too early", where="bus")


# Seconds beside a node's own interval and twice its splay: a run takes its time.
GRACE = 300.0


@lru_cache(maxsize=32_768)
def splay(node: NodeName, every: float) -> float:
    """Return the node's second of each period: constant per node, spread over the fleet."""
    digest = hashlib.sha256(node.encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64 * every


def due(node: NodeName, every: float) -> float:
    """Return how many seconds after the end of a run the next one is late."""
    return every + max(2 * splay(node, every), GRACE)


# Digits of a number in the name of a release.
MAX_DIGITS = 18
TAGS = "/tags/"
# The place of late nodes among the severities of `NodeRow.severity_in_time`.
LATE_SEVERITY = 3
_NUMBER = re.compile(r"\d+")
UNRESPONSIVE, NOT_TRUSTED, ON_HOLD = "unresponsive", "not trusted", "on hold"
UNKNOWN = "unknown"  # of a node without presence while the bus is full
LATE, ROLLED_BACK, WRONG_RELEASE = "late", "rolled back", "wrong release"
STATES = ("applying", "idle", ON_HOLD, NOT_TRUSTED, UNRESPONSIVE)


class HoldView(Value):
    """A hold on a node, without an end or a known begin if that is `None`."""

    owner: str
    reason: str
    until: float | None
    since: float | None = None

    @property
    def rollout(self) -> str:
        """Return the id of the rollout that owns it, or empty."""
        owner = rollout_of(self.owner)
        return "" if owner is None else str(owner[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRow:
    """The state of a node.

    Attributes:
        state: One of `STATES`, or `UNKNOWN`.
        problem: Why the node is not trusted; one line.
        blocked: Why the run that is due cannot start.
        release_digest: The digest of the last run's release on the node, if staged.
        assigned_by: The user who assigned its release; empty if its input names one.
        input_release: The release that its input names, while a rollback is in force.
        rolled_back_by: The user who decided on that rollback.
        in_inventory: Whether the inventory has an entry of it, or had one.
    """

    node: str
    state: str = UNRESPONSIVE
    last: RunEnd | None = None
    problem: str = ""
    cause: str = ""
    blocked: str = ""
    release_digest: str = ""
    assigned_by: str = ""
    input_release: str = ""
    rolled_back_by: str = ""
    run_interval: float | None = None
    holds: tuple[HoldView, ...] = ()
    roles: tuple[str, ...] = ()
    received_at: float | None = None
    in_inventory: bool = False

    @classmethod
    def of_presence(cls, name: str, status: Mapping[str, Any], *, now: float) -> "NodeRow":
        """Return the row of a verified presence entry."""
        state = _text(status.get("state"))
        if state == NOT_TRUSTED:
            return cls(node=name, state=state, problem=_text(status.get("reason")), received_at=now)
        last = status.get("last_run")
        holds, rollback = status.get("holds"), mapping_of(status.get("rollback"))
        row = cls(
            node=name,
            state=state if state in STATES else "idle",
            last=None if last is None else _in_time(last, now),
            cause=_text(status.get("cause")),
            blocked=_text(status.get("blocked")),
            release_digest=_text(status.get("release_digest")),
            assigned_by=_text(mapping_of(status.get("assignment")).get("by")),
            input_release=_text(rollback.get("input_release")),
            rolled_back_by=_text(rollback.get("user")),
            run_interval=_seconds(status.get("run_interval")),
            holds=_holds(holds if isinstance(holds, list) else []),
            received_at=now,
        )
        if status.get("other_agent_since"):
            row = replace(row, state=NOT_TRUSTED, problem=OTHER_AGENT)
        return row

    def with_history(self, ends: Iterable[RunEnd]) -> "NodeRow":
        """Return the row of a node without presence, with its history if that is newer."""
        last = newest((*filter(None, (self.last,)), *ends))
        if last is None or last == self.last:
            return self
        return replace(self, last=last, run_interval=last.run_interval)

    @property
    def outcome(self) -> Kind:
        """The result of the last run; unknown without presence and history."""
        if self.last is not None:
            return self.last.kind
        seen = self.received_at is not None and self.state != NOT_TRUSTED
        return Kind.NONE if seen else Kind.UNKNOWN

    @property
    def error(self) -> str:
        """The first error without parts that differ between nodes; empty without one."""
        return "" if self.last is None else self.last.shown_cause.error

    @property
    def resource(self) -> str:
        """Type and title of the first failed resource, or empty."""
        return "" if self.last is None else self.last.shown_cause.resource

    @property
    def place(self) -> str:
        """Its file and line; empty if unknown."""
        return "" if self.last is None else self.last.shown_cause.place

    @property
    def reason(self) -> str:
        """Why the node is not trusted, or the reason of the last result; one line."""
        return self.problem or ("" if self.last is None else self.last.reason)

    @property
    def release(self) -> str:
        """The release of the last run, or empty."""
        return "" if self.last is None else self.last.release

    @property
    def run(self) -> str:
        """The id of the last run; empty without one, and for a refused apply."""
        return "" if self.last is None or self.last.refusal else self.last.run

    @property
    def finished_at(self) -> float | None:
        """When the last run ended: seconds since 1970, UTC."""
        return None if self.last is None else self.last.finished_at

    @property
    def failing_since(self) -> float | None:
        """See `RunEnd.failing_since`."""
        return None if self.last is None else self.last.failing_since

    @property
    def failed_runs(self) -> int:
        """See `RunEnd.failed_runs`."""
        return 0 if self.last is None else self.last.failed_runs

    def beside(self, other: "NodeRow") -> "NodeRow":
        """Return this row with the inventory fields of another row."""
        return replace(self, roles=other.roles, in_inventory=other.in_inventory)

    def late(self, now: float) -> bool:
        """Return whether the node should have run by now, by its own timer."""
        return self.late_from is not None and self.late_from < now

    @property
    def late_from(self) -> float | None:
        """The time from which the node is late, seconds since 1970; `None` for never."""
        if self.run_interval is None or self.finished_at is None or self.is_held:
            return None
        return self.finished_at + due(NodeName(self.node), self.run_interval)

    @property
    def is_held(self) -> bool:
        """Whether the node is on hold, also during a run that was allowed under a hold."""
        return bool(self.holds) or self.state == ON_HOLD

    def severity(self, now: float) -> int:
        """Return how urgent the node is: 0 for the most urgent."""
        severity = self.severity_in_time
        return LATE_SEVERITY if severity > LATE_SEVERITY and self.late(now) else severity

    @property
    def severity_in_time(self) -> int:
        """Return the severity of a node that is not late."""
        urgent = (
            self.outcome.bad,
            self.state == UNRESPONSIVE,
            self.state == NOT_TRUSTED,
            False,  # late
            self.is_held,
            self.outcome in (Kind.CANCELLED, Kind.NOOP_PENDING, Kind.NONE, Kind.UNKNOWN),
            True,
        )
        return urgent.index(True)

    @property
    def failure(self) -> str:
        """See `RunEnd.failure`."""
        return "" if self.last is None else self.last.failure

    @property
    def failure_cause(self) -> str:
        """See `RunEnd.failure_key`."""
        return "" if self.last is None else self.last.failure_key


# The columns of a list of nodes as a file: properties of a row.
NODE_COLUMNS = (
    *("node", "state", "outcome", "finished_at", "release", "roles", "reason", "run", "error"),
    *("resource", "place", "failing_since", "failed_runs"),
)
# The orders of a list of nodes; `severity` is that of a node that is not late.
NODE_ORDERS: Mapping[str, Callable[[NodeRow], Any]] = {
    "node": lambda row: row.node,
    "severity": lambda row: row.severity_in_time,
    "state": lambda row: row.state,
    "outcome": lambda row: row.outcome.place,
    "failing_since": lambda row: row.failing_since or math.inf,
    "finished_at": lambda row: row.finished_at or 0.0,
    "release": lambda row: row.release,
}


def sort_rows(rows: Iterable[NodeRow], order: str, *, down: bool, now: float) -> list[NodeRow]:
    """Return rows in one of the orders of `NODE_ORDERS`; equal ones by name."""
    key = (lambda row: row.severity(now)) if order == "severity" else NODE_ORDERS[order]
    return sorted(sorted(rows, key=lambda row: row.node), key=key, reverse=down)


def is_older(release: str, than: str) -> bool:
    """Return whether a release, `web/tags/r9`, is before another, or before a tag of any source."""
    source, tags, tag = release.partition(TAGS)
    wanted, _, limit = than.rpartition(TAGS)
    return bool(tags) and wanted in ("", source) and tag_order(tag) < tag_order(limit)


def tag_order(name: str) -> list[tuple[int, str]]:
    """Return the key by which names of tags are sorted: r9 before r10."""
    texts = _NUMBER.split(name)
    numbers = [0, *(int(number[:MAX_DIGITS]) for number in _NUMBER.findall(name))]
    return [*zip(numbers, texts, strict=True)]


def _text(value: Json) -> str:
    return shortened(value, MAX_PRESENCE_TEXT) if isinstance(value, str) else ""


def run_id_of(value: Json) -> str:
    """Return a value that is the id of a run; empty for any other."""
    try:
        return str(RunId.parse(value)) if isinstance(value, str) else ""
    except InvalidInputError:
        return ""


def _seconds(value: Json) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and value > 0 else None


def parse_moment(value: Json) -> float | None:
    """Return a time of a presence entry in seconds since 1970; `None` for other values."""
    try:
        return parse_time(value).timestamp() if isinstance(value, str) else None
    except ValueError:
        return None


def _in_time(end: RunEnd, now: float) -> RunEnd:
    """Return an end of a run; replace an impossible time by now."""
    if end.finished_at <= now + AHEAD:
        return end
    since = None if end.failing_since is None else min(end.failing_since, now)
    begun = min(end.started_at, now)
    return replace(end, started_at=begun, finished_at=now, failing_since=since)


def _holds(holds: list[Json]) -> tuple[HoldView, ...]:
    return tuple(
        HoldView(
            owner=_text(hold.get("owner")),
            reason=_text(hold.get("reason")),
            until=parse_moment(hold.get("until")),
            since=parse_moment(hold.get("since")),
        )
        for hold in holds[:MAX_PRESENCE_HOLDS]
        if isinstance(hold, dict)
    )
