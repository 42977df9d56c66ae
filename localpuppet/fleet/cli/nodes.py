"""`localpuppet nodes`: lists the nodes of the fleet and their state, or shows each change.

The board remembers what it showed of each node, so that it shows only changes. A node whose entry
disappears is shown as gone, see `presence`.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from localpuppet.base.errors import IntegrityError, InvalidInputError, UnavailableError
from localpuppet.base.formats.converter import to_record
from localpuppet.base.formats.names import NodeName, did_you_mean
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.times import show_duration, show_time
from localpuppet.base.value import Value
from localpuppet.fleet.app import FleetApp, run
from localpuppet.fleet.bus import key_value, layout
from localpuppet.fleet.bus.key_value import Change, KeyListing, KeyRemoval, KeyValue, KeyValueEntry
from localpuppet.fleet.inventory import presence
from localpuppet.fleet.inventory.presence import PRESENCE_TTL, SCHEMA, believe, listen
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render, render_run
from localpuppet.node.cli.command import command, flag, option

if TYPE_CHECKING:
    from localpuppet.base.machine.ports import Clock
    from localpuppet.fleet.inventory.reading import InventoryReader
    from localpuppet.fleet.trust.signing import Verifier


FAILED = "failed"
# The words that the last line counts, the most urgent first.
COUNTED = (FAILED, presence.UNRESPONSIVE, presence.NOT_TRUSTED, presence.LATE, presence.ON_HOLD)
_HEAD = ("NODE", "STATE", "LAST RUN", "SINCE", "RELEASE", "FIRST ERROR OR REMARK")
_STATES = {
    "applying": "cyan",
    "idle": "green",
    presence.ON_HOLD: "yellow",
    presence.NOT_TRUSTED: "red",
    presence.UNRESPONSIVE: "red",
}
_RESULTS = {
    Kind.CHANGED: "cyan",
    Kind.CORRECTED: "magenta",
    Kind.UNCHANGED: "green",
    Kind.NOOP_CLEAN: "green",
    Kind.NOOP_PENDING: "yellow",
    Kind.CANCELLED: "yellow",
    Kind.UNKNOWN: "yellow",
}


def node_table(rows: Sequence[presence.NodeRow], now: datetime) -> str:
    """Return nodes as a table, with a line of counts below."""
    lines = []
    for row in rows:
        node, state, result, release, remark = cells(row, now)
        lines.append((node, state, result, _since(row, now), release, remark))
    counts = [f"{count} {word}" for word, count in concerns(rows, now).items() if count]
    last = ": ".join(filter(None, [render.counted(len(rows), "node"), ", ".join(counts)]))
    return f"{render.table(_HEAD, lines, spare=('SINCE',))}\n{last}"


def concerns(rows: Sequence[presence.NodeRow], now: datetime) -> dict[str, int]:
    """Return the number of nodes by each word of `COUNTED`; a node may count several times."""
    return {word: sum(has_concern(row, word, now) for row in rows) for word in COUNTED}


def has_concern(row: presence.NodeRow, word: str, now: datetime) -> bool:
    """Return whether a word of `COUNTED` applies to a node."""
    if word == FAILED:
        return row.outcome.bad
    if word == presence.LATE:
        return row.late(now.timestamp())
    return row.state == word or (word == presence.ON_HOLD and bool(row.holds))


def cells(row: presence.NodeRow, now: datetime) -> list[str]:
    """Return the cells of a node: name, state, last result, release, first error or remark."""
    state = click.style(one_line(row.state), fg=_STATES.get(row.state), bold=True)
    if row.late(now.timestamp()):
        state += f" {click.style(presence.LATE, fg='yellow', bold=True)}"
    color = "red" if row.outcome.bad else _RESULTS.get(row.outcome)
    result = "" if row.outcome is Kind.NONE else click.style(row.outcome, fg=color, bold=True)
    return [row.node, state, result, row.release, _remark(row)]


def _remark(row: presence.NodeRow) -> str:
    if row.state == presence.NOT_TRUSTED:
        return row.reason
    if row.outcome.bad and not row.blocked:
        places = ", ".join(filter(None, [row.resource, row.place]))
        return f"{row.failure} ({places})" if row.failure and places else row.failure or places
    hold = ""
    if row.holds:  # the reason of a rollout's hold names the rollout
        hold = f"{row.holds[0].reason} ({row.holds[0].owner.partition('/rollout/')[0]})"
    rollback = f"rolled back; its input names {row.input_release}" if row.input_release else ""
    return row.blocked or row.cause or hold or rollback


def _since(row: presence.NodeRow, now: datetime) -> str:
    """Return since when a node fails, or how long ago its last run ended."""
    at = row.failing_since or row.finished_at
    if at is None:
        return ""
    ago = render_run.ago(datetime.fromtimestamp(at, UTC).isoformat(), now)
    return f"{ago}, {render.counted(row.failed_runs, 'run')}" if row.failed_runs else ago


# Seconds from which the age of the inventory is shown.
NOTICEABLE_AGE = 60.0
NO_AGENT = (
    "no agent has published its node yet; one that starts needs some seconds ('localpuppet agent'"
    " on a node starts one)"
)
CLOCK_SKEW = 5.0  # seconds from which a node's clock is shown as wrong
# Nodes without a running agent whose history is read.
MAX_LAST_RUNS = 200
_ORDERS = [f"{sign}{order}" for order in presence.NODE_ORDERS for sign in ("", "-")]


class InventoryListing(Value):
    """The nodes of the inventory; without a revision, it cannot be read.

    `nodes` has rows without what they published. `matching` are the nodes that an expression finds,
    and `unknown` is what no node has of it; see `FunctionReply`.
    """

    nodes: Mapping[str, presence.NodeRow]
    matching: frozenset[str] | None = None
    unknown: tuple[str, ...] = ()
    revision: int | None = None
    age: float | None = None


@command("nodes", exits={69: "the bus is unreachable; with --role or --query, the inventory"})
@option("--failed concern", "List failed nodes.", flag_value=FAILED, multiple=True)
@option("--late concern", "List late nodes.", flag_value=presence.LATE, multiple=True)
@option(
    "--unresponsive concern",
    "List nodes without a running agent.",
    flag_value=presence.UNRESPONSIVE,
    multiple=True,
)
@option("--role roles ROLE", "List nodes of this role (repeatable).", multiple=True)
@option("--query expression QUERY", "List nodes that match a query.")
@option(
    "--sort order FIELD",
    "Sort by a field; -FIELD descending.  [default: node]",
    type=click.Choice(_ORDERS),
    default="node",
)
@flag("--watch following", "Keep running, and show every change.")
@flag("--json as_json", "Print JSON; with --watch, one line a change.")
@click.pass_obj
def nodes_command(
    node: NodeApp,
    /,
    following: bool,
    order: str,
    as_json: bool,
    **filters: Any,  # noqa: ANN401 - the options that choose nodes
) -> None:
    """Show the nodes of the fleet, and their state.

    The table has the state, last result, release and first error of each node. It includes nodes
    of the inventory without a running agent, with the last run of their history, or "unknown" if
    the history cannot be read. SINCE is the time since a node fails, with the number of failed
    runs, or the end of its last run. The words and colours are those of the dashboard.

    If a node's key is not trusted here, its row says "not trusted" and nothing else. With several
    of --failed, --late and --unresponsive, a node is listed for each of them.

    FIELD is node, severity (failed nodes first), state, outcome, failing_since, finished_at or
    release.

    Examples:
      localpuppet nodes
      localpuppet nodes --failed --late --unresponsive --sort severity
      localpuppet nodes --query 'role=web and os.family=Debian'
      localpuppet nodes --watch
      localpuppet nodes --json | jq '.nodes[] | select(.holds != [])'
    """
    fleet = FleetApp(node)
    fleet.require_bus()
    if following:
        if any(filters.values()):
            raise click.UsageError("--watch excludes the options that choose nodes")
        run(follow(fleet.connect, Board(fleet.verifier, node.clock, as_json=as_json)))
        return
    now = node.clock.now()
    published, listing = run(_gathered(fleet, filters["expression"], needs=bool(filters["roles"])))
    rows = presence.sort_rows(
        _chosen(_rows(published, listing, now), listing, now, filters),
        order.removeprefix("-"),
        down=order.startswith("-"),
        now=now.timestamp(),
    )
    if as_json:
        render.emit_json(
            {
                "schema": 1,
                "revision": listing.revision,
                "age": listing.age,
                "counts": concerns(rows, now),
                "nodes": [_record(row, published.get(row.node), now) for row in rows],
            }
        )
        return
    if rows:
        render.emit(node_table(rows, now))
    elif any(filters.values()):
        render.emit("no node matches")
    else:
        render.emit(NO_AGENT)
    for line in wrong_clocks(published, node.clock.now().timestamp()):
        render.say(f"# {line}", err=True)
    known = {role for row in listing.nodes.values() for role in row.roles}
    unknown = [
        f"no node has the role {role} ({did_you_mean(role, [*known])})"
        for role in filters["roles"]
        if role not in known
    ]
    for text in (*listing.unknown, *unknown):
        render.say(f"# warning: {text}", err=True)
    if (listing.age or 0) >= NOTICEABLE_AGE:
        render.emit(f"inventory as of {show_duration(listing.age or 0)} ago")


async def _gathered(
    fleet: FleetApp, expression: str | None, *, needs: bool
) -> tuple[dict[str, dict[str, Any]], InventoryListing]:
    """Return the published states by node, and the inventory, if the query or the list needs it."""
    async with fleet.connected() as kv:
        published = await fleet.online(kv)
        full = await kv.fullness()
        listing = await _listed(fleet, expression, needs=needs)
        if not full:
            now = fleet.node.clock.now().timestamp()
            listing = await _with_last_runs(listing, published.keys(), kv, fleet, now=now)
    if full:
        render.note(f"nodes cannot publish their state, so that of some is unknown: {full}")
        unknown = {
            name: replace(row, state=presence.UNKNOWN) for name, row in listing.nodes.items()
        }
        listing = replace(listing, nodes=unknown)
    return published, listing


async def _listed(inventory: FleetApp, expression: str | None, *, needs: bool) -> InventoryListing:
    try:
        # The list shows nodes without an entry itself.
        answer = await inventory.entries.answer(_listing(expression), render.note, warns=False)
    except UnavailableError as error:
        if needs or expression:
            raise
        render.note(f"nodes without a running agent are not listed: {error}")
        return InventoryListing(nodes={})
    return replace(answer.answer, revision=answer.revision, age=answer.age)


async def _with_last_runs(
    listing: InventoryListing,
    online: Collection[str],
    kv: "KeyValue",
    fleet: FleetApp,
    *,
    now: float,
) -> InventoryListing:
    """Return a listing with the last runs of nodes without a running agent, from their history."""
    offline = sorted(listing.nodes.keys() - online)
    if not offline:
        return listing
    from localpuppet.fleet.history.history_follower import read_runs

    rows = dict(listing.nodes)
    for name in offline[:MAX_LAST_RUNS]:
        try:
            runs, _ = await read_runs(kv, NodeName(name), fleet.verifier, now=now)
        except (InvalidInputError, IntegrityError) as error:
            render.note(f"{name}: its history is not read: {error}")
            continue
        except UnavailableError as error:
            render.note(f"the last runs of nodes without a running agent are unknown: {error}")
            break
        rows[name] = rows[name].with_history(runs)
    if len(offline) > MAX_LAST_RUNS:
        left = len(offline) - MAX_LAST_RUNS
        render.note(f"the last runs of {left} more nodes without a running agent are not read")
    return replace(listing, nodes=rows)


def _listing(expression: str | None) -> "Callable[[InventoryReader], InventoryListing]":
    from localpuppet.fleet.inventory.query.functions import FunctionCall

    query = FunctionCall.of("query", [expression]) if expression else None

    def read(reader: "InventoryReader") -> InventoryListing:
        nodes = {
            str(node.node): presence.NodeRow(
                node=str(node.node), roles=tuple(map(one_line, node.roles)), in_inventory=True
            )
            for node in reader.nodes()
        }
        if query is None:
            return InventoryListing(nodes=nodes)
        reply = query.answer(reader)
        return InventoryListing(nodes=nodes, matching=frozenset(reply.names), unknown=reply.unknown)

    return read


def _rows(
    published: Mapping[str, Mapping[str, Any]], listing: InventoryListing, now: datetime
) -> Iterable[presence.NodeRow]:
    for name in published.keys() | listing.nodes.keys():
        known = listing.nodes.get(name, presence.NodeRow(node=name))
        if name not in published:
            yield known
        else:
            yield presence.NodeRow.of_presence(name, published[name], now=now.timestamp()).beside(
                known
            )


def _chosen(
    rows: Iterable[presence.NodeRow],
    listing: InventoryListing,
    now: datetime,
    filters: Mapping[str, Any],
) -> list[presence.NodeRow]:
    roles, wanted = set(filters["roles"]), filters["concern"]
    return [
        row
        for row in rows
        if (not roles or not roles.isdisjoint(row.roles))
        and (listing.matching is None or row.node in listing.matching)
        and (not wanted or any(has_concern(row, word, now) for word in wanted))
    ]


def clock_skew(status: Mapping[str, Any], now: float) -> float | None:
    """Return how many seconds a node's clock is ahead of this one; `None` if it may be right.

    A status may be as old as it lasts on the bus.
    """
    ahead = (presence.parse_moment(status.get("at")) or now) - now
    is_wrong = ahead > CLOCK_SKEW or -ahead > PRESENCE_TTL + CLOCK_SKEW
    return round(ahead, 3) if is_wrong else None


def wrong_clocks(published: Mapping[str, Mapping[str, Any]], now: float) -> Iterable[str]:
    """Yield the nodes whose clock differs."""
    for name, status in sorted(published.items()):
        if ahead := clock_skew(status, now):
            word = "ahead of" if ahead > 0 else "behind"
            yield f"{name}: its clock is {show_duration(abs(ahead))} {word} this machine's"


def _record(
    row: presence.NodeRow, published: Mapping[str, Any] | None, now: datetime
) -> dict[str, Any]:
    """Return a node as JSON: what it published, and the dashboard's words for it."""
    return {
        **(published or {"schema": SCHEMA, "node": row.node, "holds": []}),
        "last_run": None if row.last is None else to_record(row.last),
        "state": row.state,
        "outcome": str(row.outcome),
        "late": row.late(now.timestamp()),
        "clock_skew": clock_skew(published or {}, now.timestamp()),
        "release": row.release,
        "finished_at": None
        if row.finished_at is None
        else show_time(datetime.fromtimestamp(row.finished_at, UTC)),
        "roles": list(row.roles),
    }


AGAIN = 0.5
GONE = "gone"
HEAD = ("TIME (UTC)", "NODE", "STATE", "LAST RUN", "RELEASE", "FIRST ERROR OR REMARK")
# Wide enough for later states: 'applying', 'unchanged'.
LEAST = [0, 0, 8, 9, 0, 0]


async def follow(connect: Callable[[], Awaitable[KeyValue]], board: "Board") -> None:
    """Show every change, without an end; note an outage once, and wait for its end."""
    kv = await connect()
    try:
        while True:
            try:
                # A separate task: a failed group leaves its task marked as cancelled.
                await asyncio.create_task(listen(kv, board))
            except* UnavailableError as errors:
                board.lost(errors.exceptions[0])
            await asyncio.sleep(AGAIN)
    finally:
        await kv.close()


class Board:
    """Shows the reports of nodes, each change once."""

    def __init__(self, verifier: "Verifier", clock: "Clock", *, as_json: bool) -> None:
        self._verifier = verifier
        self._clock = clock
        self._as_json = as_json
        self._known: dict[str, tuple[int, list[str]]] = {}
        self._widths = list(LEAST)
        self._widen(HEAD)
        self._begun = False
        self._away = ""  # what the bus does again after an outage

    def take(self, change: Change) -> None:
        if self._away:
            render.say(f"# the bus {self._away} again", err=True)
        self._away = ""
        if isinstance(change, KeyListing):
            self._begin(change)
        for entry in key_value.entries(change):
            self._put(entry)
        if isinstance(change, KeyListing):
            # Ignore revisions: it may be another store.
            for name in self._known.keys() - {_name(entry.key) for entry in change.entries}:
                self._gone(name)
        elif isinstance(change, KeyRemoval):
            self._gone(_name(change.key))
        sys.stdout.flush()

    def miss(self, names: AbstractSet[str], revision: int) -> None:
        """Show known nodes as gone if a listing lacks them, except those with a newer revision."""
        for name in sorted(self._known.keys() - names):
            if self._known[name][0] <= revision:
                self._gone(name)
        sys.stdout.flush()

    def full(self, reason: str) -> None:
        """Note once that nodes cannot publish; see `PresenceBoard`."""
        if not self._away:
            render.say(f"# nodes cannot publish their state: {reason}", err=True)
        self._away = "accepts values"

    def lost(self, error: BaseException) -> None:
        """Note an outage once; raise its error if it precedes the first listing."""
        if not self._begun:
            raise error
        if not self._away:
            render.say(f"# the bus is unreachable, still trying: {error}", err=True)
        self._away = "is reachable"

    def _begin(self, listing: "KeyListing") -> None:
        if not self._begun and not self._as_json:
            for entry in listing.entries:
                self._widen(["", *self._cells(self._believe(entry))])
            self._emit([click.style(cell, bold=True) for cell in HEAD])
        self._begun = True

    def _believe(self, entry: KeyValueEntry) -> dict[str, Any]:
        return believe(self._verifier, _name(entry.key), entry.value)

    def _cells(self, node_status: dict[str, Any]) -> list[str]:
        now = self._clock.now()
        row = presence.NodeRow.of_presence(node_status["node"], node_status, now=now.timestamp())
        return cells(replace(row, state=GONE) if node_status["state"] == GONE else row, now)

    def _put(self, entry: KeyValueEntry) -> None:
        name = _name(entry.key)
        node_status = self._believe(entry)
        row = self._cells(node_status)
        before = self._known.get(name)
        self._known[name] = (entry.revision, row)
        if before is None or before[1] != row or self._as_json:
            self._show(node_status, row)

    def _gone(self, name: str) -> None:
        if self._known.pop(name, None) is not None:
            node_status = {"schema": SCHEMA, "node": name, "state": GONE}
            self._show(node_status, self._cells(node_status))

    def _show(self, node_status: dict[str, Any], row: list[str]) -> None:
        if self._as_json:
            last = node_status.get("last_run")
            more = {} if last is None else {"last_run": to_record(last)}
            render.emit_json_line({**node_status, **more})
        else:
            self._emit([f"{self._clock.now():%H:%M:%S}", *row])

    def _widen(self, row: Sequence[str]) -> None:
        lengths = (len(click.unstyle(cell)) for cell in row)
        self._widths = [max(pair) for pair in zip(self._widths, lengths, strict=True)]

    def _emit(self, row: Sequence[str]) -> None:
        self._widen(row)
        render.emit(render.aligned(row, self._widths, end=render.columns()))


def _name(key: str) -> str:
    return key.removeprefix(layout.PRESENCE)
