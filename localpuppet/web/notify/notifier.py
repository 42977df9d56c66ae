"""Looks at the fleet, decides what to tell, and tells it, for as long as the dashboard runs.

- SELECTs over the rows that all views of the dashboard show find what is wrong. `NodeRow` alone
  decides what is late, failed or on hold; nothing is decided again here.
- A lease elects one sender. Another process with the same settings decides the same, and sends
  nothing; when it takes over, it sends what it decided since shortly before. If the bus is
  unreachable, the last holder continues: it alone reports that.
- A channel that fails delays no other one. What fails is in the log, on the dashboard, and in the
  metrics.
"""

import asyncio
from collections import Counter
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
    Set,
)
from concurrent.futures import ThreadPoolExecutor
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from localpuppet.base.errors import LocalpuppetError, StateError, UnavailableError
from localpuppet.base.formats.prometheus import show_samples
from localpuppet.base.formats.strict_json import loads_again
from localpuppet.base.formats.text import shortened
from localpuppet.base.formats.times import show_epoch
from localpuppet.base.machine.files import write_durably
from localpuppet.base.machine.ports import Clock, Log
from localpuppet.base.machine.sqlite import Connection
from localpuppet.base.machine.waiting import wait_first
from localpuppet.fleet.bus.key_value import RefusedError
from localpuppet.fleet.history.history_records import DAY, day_of
from localpuppet.fleet.inventory.presence import LATE, NOT_TRUSTED, UNRESPONSIVE, WRONG_RELEASE
from localpuppet.fleet.leases.lease import HeldLease, Leases
from localpuppet.node.releases.release_records import StagedRelease
from localpuppet.rollout.events import RolloutEnding
from localpuppet.rollout.rollout_report import PAUSED
from localpuppet.web.dashboard.fleet import Fleet
from localpuppet.web.dashboard.memory import DashboardStore
from localpuppet.web.dashboard.nodes import CONCERNS
from localpuppet.web.dashboard.rollouts import RolloutRow, active_rollouts
from localpuppet.web.dashboard.run_queries import drifting
from localpuppet.web.notify import channels
from localpuppet.web.notify.notice_ledger import LAST, ChannelState, NoticeLedger, SentStatus
from localpuppet.web.notify.routing import (
    KEPT,
    ChannelType,
    Condition,
    Incident,
    IncidentKind,
    NotifySettings,
    Route,
    decide,
    freeze,
)
from localpuppet.web.notify.wording import IncidentText

LEASE, TTL = "notify", 30.0
CHANNEL = "channel of notifications"
# Seconds between two looks at drift, which takes days and costs more than all other looks.
DRIFT_EVERY = 600.0
MAX_TEXT = 300
# Conditions of a kind: compromised nodes can invent a failure cause for each run.
MOST = 200
# Runs within a week that correct a resource on one node before that is drift, the last within a
# day: a resource that is no longer corrected is no incident.
CORRECTIONS, WEEK = 3, 7
# Seconds before the end of a certificate.
EXPIRES_IN = 14 * DAY
FAILED = RolloutEnding.FAILED
_FAILED = """
SELECT failure_cause, release, failure, place, json_group_array(node) FROM nodes
WHERE failure_cause != '' GROUP BY failure_cause, release
"""
_STATES = {
    IncidentKind.LATE: (LATE, CONCERNS[LATE]),
    IncidentKind.UNRESPONSIVE: (UNRESPONSIVE, f"state = '{UNRESPONSIVE}'"),
    IncidentKind.NOT_TRUSTED: (NOT_TRUSTED, f"state = '{NOT_TRUSTED}'"),
}
_HELP = {
    "localpuppet_notify_look_timestamp_seconds": "When the fleet was last looked at.",
    "localpuppet_notify_sender": "Whether this process sends messages.",
    "localpuppet_notify_incidents": "Open incidents by kind.",
    "localpuppet_notify_channel_failing": "Whether the last attempt of a channel failed.",
    "localpuppet_notify_channel_waiting": "Messages that a channel has not taken.",
}


def _conditions_of_nodes(connection: Connection, *, now: float) -> list[Condition]:
    """Return what is wrong with nodes; `now` is in seconds since 1970, UTC."""
    found = [
        _condition(
            IncidentKind.FAILED,
            f"{cause}:{release}",
            release=release,
            detail=f"{failure} ({place})" if place else failure,
            nodes=_sorted(nodes),
            page=f"/nodes?failure_cause={quote(cause)}",
        )
        for cause, release, failure, place, nodes in connection.execute(_FAILED)
    ]
    for kind, (word, condition) in _STATES.items():
        (nodes,) = connection.execute(
            f"SELECT json_group_array(node) FROM nodes WHERE {condition}",  # noqa: S608
            {"now": now},
        ).fetchone()
        if names := _sorted(nodes):
            page = f"/nodes?is={quote(word)}"
            found.append(Condition(key=kind, kind=kind, nodes=names, page=page))
    found += [
        _condition(
            IncidentKind.WRONG_RELEASE,
            release,
            release=release,
            nodes=_sorted(nodes),
            page=f"/nodes?is={quote(WRONG_RELEASE)}",
        )
        for release, nodes in connection.execute(
            "SELECT release, json_group_array(node) FROM wrong GROUP BY release"
        )
    ]
    return found


def _conditions_of_drift(connection: Connection, *, now: float) -> list[Condition]:
    """Return the resources that Puppet keeps correcting; it reads the runs of a week."""
    by_resource: dict[str, set[str]] = {}
    for row in drifting(connection, since=day_of(now) - WEEK):
        if row.count >= CORRECTIONS and row.last > now - DAY:
            by_resource.setdefault(row.resource, set()).add(row.node)
    return [
        _condition(
            IncidentKind.DRIFT,
            resource,
            subject=shortened(resource, MAX_TEXT),
            nodes=tuple(sorted(nodes)),
            page="/drift",
        )
        for resource, nodes in by_resource.items()
    ]


def _conditions_of_rollouts(rows: Sequence[RolloutRow], *, now: float) -> Iterator[Condition]:
    """Yield the rollouts that wait for a person, failed, or left nodes without their change."""
    failed = [row for row in rows if row.state == FAILED and (row.finished_at or 0) > now - DAY]
    halfway = [row for row in active_rollouts(rows, {}, now=now) if row.is_halfway]
    waiting = [row for row in rows if row.state == PAUSED]
    for row in {row.id: row for row in (*failed, *halfway, *waiting)}.values():
        yield _condition(
            IncidentKind.ROLLOUT,
            f"{row.id}:{row.state}",
            subject=f"{row.id} is {row.state}",
            release=row.release,
            detail=row.reason,
            page=f"/rollouts/{row.id}",
        )


def _conditions_of_certificates(ends: Mapping[str, float], *, now: float) -> Iterator[Condition]:
    """Yield the certificates that end soon; `ends` are their names with seconds since 1970."""
    for name, end in ends.items():
        if end < now + EXPIRES_IN:
            detail = f"on {show_epoch(end)}"
            yield _condition(IncidentKind.EXPIRY, f"{name}:{end}", subject=name, detail=detail)


def _conditions_of_node_certificates(
    ends: Mapping[str, float | None], *, now: float
) -> Iterator[Condition]:
    """Yield the nodes whose certificates end soon; `ends` are in seconds since 1970, by node."""
    soon = {node: end for node, end in ends.items() if end is not None and end < now + EXPIRES_IN}
    if soon:
        yield _condition(
            IncidentKind.EXPIRY,
            "nodes",
            detail=f"the first on {show_epoch(min(soon.values()))}",
            nodes=tuple(sorted(soon)),
            page="/nodes",
        )


def _limited(
    conditions: Iterable[Condition], known: Set[str]
) -> tuple[dict[str, Condition], Set[str]]:
    """Return conditions by key, and the keys of those that are too many: of the fewest nodes.

    Args:
        known: Keys that come before others with as many nodes, so that none takes their place.
    """
    seen: dict[str, Condition] = {}
    more, counts = set(), Counter[IncidentKind]()
    for one in sorted(conditions, key=lambda one: (-len(one.nodes), one.key not in known, one.key)):
        counts[one.kind] += 1
        if counts[one.kind] > MOST:
            more.add(one.key)
        else:
            seen[one.key] = one
    return seen, more


def _condition(kind: IncidentKind, key: str, /, detail: str = "", **fields: Any) -> Condition:  # noqa: ANN401 - fields of the class
    return Condition(key=f"{kind}:{key}", kind=kind, detail=shortened(detail, MAX_TEXT), **fields)


def _sorted(names: str) -> tuple[str, ...]:
    return tuple(sorted(loads_again(names.encode())))


@dataclass(slots=True, kw_only=True)
class FleetSight:
    """How the notifier sees the fleet; `rollouts` reads files."""

    fleet: Fleet
    memory: DashboardStore
    rollouts: Callable[[], Sequence[RolloutRow]]
    certificates: Callable[[], Mapping[str, float]]
    names: Callable[[str], Awaitable[frozenset[str] | None]]
    releases: Callable[[str], Sequence[StagedRelease]] = lambda _: ()
    _drift: tuple[float, Sequence[Condition]] = field(default=(0.0, ()), init=False)
    _seen: Set[str] = field(default=frozenset(), init=False)

    def blindness(self) -> Condition | None:
        """Return why the fleet cannot be seen; `None` if it can."""
        fleet = self.fleet
        if fleet.has_no_bus:
            return None
        unread = "" if fleet.unsaved or fleet.verified.is_set() else "not read yet"
        away = fleet.away or unread
        if not (away or fleet.unsaved):
            return None
        subject = "the bus has no room" if fleet.is_full else "the bus is unreachable"
        if not away:
            subject = "the dashboard cannot store results"
        detail = shortened(away or fleet.unsaved, MAX_TEXT)
        return Condition(
            key=IncidentKind.BUS, kind=IncidentKind.BUS, subject=subject, detail=detail
        )

    def conditions(self, now: float) -> tuple[dict[str, Condition], Set[str]]:
        """Return what is wrong, by key, and the keys of what is too much; it reads files."""
        if not 0 <= now - self._drift[0] < DRIFT_EVERY:
            self._drift = now, self.memory.read(_conditions_of_drift, now=now)
        seen, more = _limited(
            [
                *self.memory.read(_conditions_of_nodes, now=now),
                *self._drift[1],
                *_conditions_of_rollouts(self.rollouts(), now=now),
                *_conditions_of_certificates(self.certificates(), now=now),
                *_conditions_of_node_certificates({**self.fleet.certificate_ends}, now=now),
            ],
            self._seen,
        )
        self._seen = seen.keys()
        return seen, more

    def statuses(self, route: Route) -> list[channels.CommitStatus]:
        """Return the statuses of commits for a git host; it reads files."""
        source = route.channel.source
        nodes = self.memory.read(channels.nodes_of_source, source)
        return channels.statuses_of(self.releases(source), nodes, route)


class Election:
    """Keeps the lease that elects the sender."""

    def __init__(self, leases: Callable[[], Awaitable[Leases]]) -> None:
        self._leases = leases
        self._held: HeldLease | None = None
        self._other = False
        self.refusal = ""  # why the bus denies the lease

    async def is_won(self) -> bool:
        """Return whether this process is the sender; renew the lease, or take a free one.

        While the bus is unreachable, the last holder remains; without a known one, it is this
        process: an outage must be reported.
        """
        try:
            async with asyncio.timeout(TTL / 3):
                leases = await self._leases()
                if self._held is not None:
                    current = await leases.find(self._held)
                    self._held = None if current is None else await leases.renew(current)
                if self._held is None:
                    self._held = await leases.take(LEASE, ttl=TTL)
                self._other = self._held is None
        except RefusedError as error:
            cure = f"add 'leases: [{LEASE}]' for this name to the roster"
            self.refusal = f"{error} ({cure}): messages can come from several machines"
            return not self._other
        except (UnavailableError, TimeoutError):
            return not self._other
        self.refusal = ""
        return self._held is not None

    async def leave(self) -> None:
        """Release the lease, so that another process need not wait."""
        held, self._held = self._held, None
        try:
            if held is not None:
                async with asyncio.timeout(TTL / 10):
                    await (await self._leases()).give_back(held)
        except (UnavailableError, TimeoutError):
            pass  # it expires by itself


@dataclass(slots=True, eq=False)
class Notifier:
    """The notifier; without an election, as there is no bus, it sends."""

    settings: NotifySettings
    sight: FleetSight
    ledger: NoticeLedger
    election: Election | None
    _: KW_ONLY
    root: Path
    metrics: Path
    clock: Clock
    log: Log
    every: float = 10.0  # seconds between two looks
    again: float = 60.0  # seconds between two reports of what is open, to channels that take states
    _stated_at: dict[str, float] = field(default_factory=dict, init=False)
    _logged: dict[str, str] = field(default_factory=dict, init=False)
    _sending: dict[str, asyncio.Task[None]] = field(default_factory=dict, init=False)
    # The last message that a channel took, by its number: a full disk may keep it waiting.
    _taken: dict[str, int] = field(default_factory=dict, init=False)
    _leaves: bool = field(default=False, init=False)
    # Channels whose servers do not answer must not take the threads of the dashboard.
    _exchanges: ThreadPoolExecutor = field(init=False)

    def __post_init__(self) -> None:
        self._exchanges = ThreadPoolExecutor(len(self.settings.channels) or 1)

    async def run(self, leave: asyncio.Event) -> None:
        """Notify until `leave` is set."""
        while not leave.is_set():
            try:
                await self.look()
                self._note("notify", "")
            except StateError as error:
                self._note("notify", f"incidents cannot be stored: {error}")
            await wait_first(leave, seconds=self.every)
        self._leaves = True
        await self.settled()
        if self.election is not None:
            await self.election.leave()

    async def look(self) -> None:
        """Look at the fleet once, and send what is due."""
        now = self._now()
        blind = self.sight.blindness()
        routes = await self._routes()
        sends = self.election is None or await self.election.is_won()
        refusal = self.election.refusal if self.election else ""
        self._note("lease", refusal)
        self.sight.fleet.note_failing("lease", {LEASE: refusal} if refusal else {})
        if blind is None:
            seen, more = await asyncio.to_thread(self.sight.conditions, now)
            step = partial(decide, seen=seen, more=more, now=now, timing=self.settings.timing)
        else:
            step = partial(freeze, blind=blind, now=now, timing=self.settings.timing)
        incidents = await asyncio.to_thread(
            self.ledger.advance, step, routes, channels=self.settings.channels, now=now
        )
        if not sends:
            await asyncio.to_thread(self.ledger.forget_before, now - 2 * TTL)
        failing = self.sight.fleet.failing.get(CHANNEL, {})
        for route in routes if sends else ():
            before = self._sending.get(route.name)
            if before is not None:
                if not before.done():
                    continue
                del self._sending[route.name]
                if (error := before.exception()) is not None:
                    await self._settle(route, f"internal error: {type(error).__name__}")
            kind = route.channel.type
            # Its own failure must not keep a heartbeat from the next attempt.
            is_well = blind is None and failing.keys() <= {route.name}
            if not kind.takes_states:
                work = self._deliver(route)
            elif kind.is_git_host and blind is None:
                work = self._show_commits(route)
            elif kind is ChannelType.ALERTMANAGER or (kind is ChannelType.HEARTBEAT and is_well):
                work = self._state(route, incidents)
            else:
                continue
            self._sending[route.name] = asyncio.create_task(self._send(route, work))
        await self._report(incidents, sends=sends, now=now)

    async def _routes(self) -> list[Route]:
        """Return the routes; one whose query cannot be answered is left out, and so stays as is."""
        routes = []
        for name, channel in self.settings.channels.items():
            try:
                nodes = await self.sight.names(channel.query)
                self._note(f"query of {name}", "")
            except LocalpuppetError as error:
                self._note(f"query of {name}", f"the query of channel {name} failed: {error}")
                continue
            routes.append(Route(name=name, channel=channel, nodes=nodes))
        return routes

    async def _send(self, route: Route, work: Coroutine[None, None, None]) -> None:
        try:
            try:
                await work
            except channels.ChannelError as error:
                await self._settle(route, str(error))
        except StateError as error:
            self._note("notify", f"messages cannot be stored: {error}")

    async def settled(self) -> None:
        """Wait until the exchanges that are under way have ended."""
        await asyncio.gather(*self._sending.values(), return_exceptions=True)

    async def _exchange(self, call: Callable[..., None], /, *parts: object, **more: object) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._exchanges, partial(call, *parts, **more))

    async def _deliver(self, route: Route) -> None:
        channel = channels.Channel(route.channel, self.root)
        while not self._leaves:
            now = self._now()
            waiting = await asyncio.to_thread(self.ledger.next_notice, route.name, now=now)
            if waiting is None:
                return
            number, notice = waiting
            problem = ""
            if self._taken.get(route.name) != number:
                try:
                    await self._exchange(channel.send, notice, now=now)
                except channels.PartlyTakenError as error:
                    problem = str(error)
                self._taken[route.name] = number
            await asyncio.to_thread(self.ledger.take_away, number)
            await self._settle(route, problem, pauses=False)

    async def _state(self, route: Route, incidents: Mapping[str, Incident]) -> None:
        """Tell a channel what is open: at once if that changed, else now and then."""
        now, name = self._now(), route.name
        texts = [
            IncidentText.of(one, route, self.settings.dashboard)
            for one in incidents.values()
            if one.opened_at is not None and route.wants(one.condition)
        ]
        times = [at for one in texts for at in (one.opened_at, one.closed_at or 0.0)]
        changed = any(0 <= now - at <= self.every for at in times)
        if not changed and 0 <= now - self._stated_at.get(name, -KEPT) < self.again:
            return
        if not await asyncio.to_thread(self.ledger.is_due, name, now=now):
            return
        channel, fleet = channels.Channel(route.channel, self.root), self.settings.fleet
        if route.channel.type is ChannelType.HEARTBEAT:
            await self._exchange(channel.beat)
        else:
            await self._exchange(channel.alert, texts, fleet=fleet, now=now)
        self._stated_at[name] = now
        await self._settle(route, "")

    async def _show_commits(self, route: Route) -> None:
        """Send a git host the statuses of commits that differ from those that it took."""
        now, name, ledger = self._now(), route.name, self.ledger
        channel = channels.Channel(route.channel, self.root)
        sender = channels.StatusSender(channel, self.settings.fleet, self.settings.dashboard)
        statuses = await asyncio.to_thread(self.sight.statuses, route)
        sent = await asyncio.to_thread(ledger.sent_statuses, name)
        waiting = channels.due(statuses, sent, now=now)
        for status in waiting:
            if self._leaves:
                return
            problem = ""
            try:
                await self._exchange(sender.send, status)
            except channels.ChannelError as error:
                problem = f"{status.release}: {error}"
            one = sent.get(status.commit, SentStatus()).after(status.shown, problem, now)
            sent[status.commit] = one
            await asyncio.to_thread(ledger.note_status, name, status.commit, one)
        if waiting:
            known = [sent[status.commit].problem for status in statuses if status.commit in sent]
            await self._settle(route, next(filter(None, known), ""))

    async def _settle(self, route: Route, problem: str, *, pauses: bool = True) -> None:
        # Soon enough: Alertmanager ends what is not sent again, and a heartbeat is missed.
        longest = self.again if route.channel.type.takes_states else LAST
        note = partial(self.ledger.note, now=self._now(), longest=longest if pauses else 0.0)
        await asyncio.to_thread(note, route.name, problem)
        text = f"channel {route.name} does not take messages: {problem}" if problem else ""
        self._note(f"channel {route.name}", text)

    async def _report(self, incidents: Mapping[str, Incident], *, sends: bool, now: float) -> None:
        """Show failing channels on the dashboard, and write the metrics."""
        states = await asyncio.to_thread(self.ledger.states, self.settings.channels)
        failing = {name: state.problem for name, state in states.items() if state.problem}
        for name in self.settings.channels:
            if problem := self._logged.get(f"query of {name}"):
                failing[name] = problem
        self.sight.fleet.note_failing(CHANNEL, failing)
        samples = metrics_of(incidents.values(), states, sends=sends, now=now)
        path = self.metrics.with_stem(f"{self.metrics.stem}-notify")
        data = show_samples(samples, _HELP).encode()
        try:
            await asyncio.to_thread(write_durably, path, data, mode=0o644)
            self._note("metrics", "")
        except StateError as error:
            self._note("metrics", f"the metrics of notifications cannot be written: {error}")

    def _note(self, part: str, problem: str) -> None:
        """Log a problem of a part once, and when it is over."""
        if problem and self._logged.get(part) != problem:
            self.log.warning(problem)
        if problem:
            self._logged[part] = problem
        elif self._logged.pop(part, None) is not None:
            self.log.info(f"{part}: works again")

    def _now(self) -> float:
        return self.clock.now().timestamp()


def metrics_of(
    incidents: Iterable[Incident], states: Mapping[str, ChannelState], *, sends: bool, now: float
) -> dict[str, str]:
    """Return the samples of incidents and channels."""
    samples = {
        "localpuppet_notify_look_timestamp_seconds": f"{now:.3f}",
        "localpuppet_notify_sender": str(int(sends)),
    }
    kinds = [one.condition.kind for one in incidents if one.is_open]
    for kind in sorted({*kinds}):
        samples[f'localpuppet_notify_incidents{{kind="{kind}"}}'] = str(kinds.count(kind))
    for name, state in states.items():
        label = f'{{channel="{name}"}}'
        failing = int(bool(state.problem))
        samples[f"localpuppet_notify_channel_failing{label}"] = str(failing)
        samples[f"localpuppet_notify_channel_waiting{label}"] = str(state.waiting)
    return samples
