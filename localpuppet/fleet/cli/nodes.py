"""`localpuppet nodes`: lists the nodes of the fleet, and their state."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from localpuppet.base.errors import IntegrityError, InvalidInputError, UnavailableError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.times import show_duration, show_time
from localpuppet.base.value import Value
from localpuppet.fleet.cli.node_table import FAILED, concerns, has_concern, node_table
from localpuppet.fleet.inventory.node_row import (
    LATE,
    NODE_ORDERS,
    UNKNOWN,
    UNRESPONSIVE,
    NodeRow,
    parse_moment,
    sort_rows,
)
from localpuppet.fleet.inventory.presence import PRESENCE_TTL, SCHEMA, believe
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import command, flag, option

if TYPE_CHECKING:
    from localpuppet.fleet.bus.key_value import KeyValue
    from localpuppet.fleet.inventory.reading import InventoryReader
    from localpuppet.fleet.wiring.fleet import FleetWiring
    from localpuppet.fleet.wiring.inventory import InventoryWiring

# Seconds from which the age of the inventory is shown.
NOTICEABLE_AGE = 60.0
NO_AGENT = (
    "no agent has published its node yet; one that starts needs some seconds ('localpuppet agent'"
    " on a node starts one)"
)
CLOCK_SKEW = 5.0  # seconds from which a node's clock is shown as wrong
# Nodes without a running agent whose history is read.
MAX_LAST_RUNS = 200
_ORDERS = [f"{sign}{order}" for order in NODE_ORDERS for sign in ("", "-")]


class InventoryListing(Value):
    """The nodes of the inventory.

    Attributes:
        nodes: Node → its row, without what it published.
        matching: The nodes that an expression finds; `None` without an expression.
        revision: The revision of the bus; `None` if the inventory cannot be read.
        age: Seconds since the view was last current.
    """

    nodes: Mapping[str, NodeRow]
    matching: frozenset[str] | None = None
    revision: int | None = None
    age: float | None = None


@command("nodes", exits={69: "the bus is unreachable; with --role or --query, the inventory"})
@option("--failed concern", "List failed nodes.", flag_value=FAILED, multiple=True)
@option("--late concern", "List late nodes.", flag_value=LATE, multiple=True)
@option(
    "--unresponsive concern",
    "List nodes without a running agent.",
    flag_value=UNRESPONSIVE,
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
    from localpuppet.fleet.wiring.fleet import FleetWiring, run

    if following:
        if any(filters.values()):
            raise click.UsageError("--watch excludes the options that choose nodes")
        from localpuppet.fleet.cli.nodes_watch import Board, follow

        fleet = FleetWiring(node)
        run(follow(fleet.connect, Board(fleet.verifier, node.clock, as_json=as_json)))
        return
    now = node.clock.now()
    published, listing = run(_gathered(node, filters["expression"], needs=bool(filters["roles"])))
    rows = sort_rows(
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
    if (listing.age or 0) >= NOTICEABLE_AGE:
        render.emit(f"inventory as of {show_duration(listing.age or 0)} ago")


async def _gathered(
    node: NodeApp, expression: str | None, *, needs: bool
) -> tuple[dict[str, dict[str, Any]], InventoryListing]:
    """Return the published states by node, and the inventory.

    Args:
        node: The wiring.
        expression: A query, or `None`.
        needs: Whether the list needs the inventory even without a query.
    """
    from localpuppet.fleet.inventory import presence
    from localpuppet.fleet.wiring.fleet import FleetWiring
    from localpuppet.fleet.wiring.inventory import InventoryWiring

    fleet = FleetWiring(node)
    inventory = InventoryWiring(node, fleet=fleet)
    note = render.QuietObserver().note
    async with fleet.connected() as kv:
        entries = await presence.nodes(kv)
        full = await kv.fullness()
        published = {name: believe(fleet.verifier, name, token) for name, token in entries.items()}
        listing = await _listed(inventory, expression, note, needs=needs)
        if not full:
            now = node.clock.now().timestamp()
            listing = await _with_last_runs(listing, published.keys(), kv, fleet, note, now=now)
    if full:
        note(f"nodes cannot publish their state, so that of some is unknown: {full}")
        unknown = {name: replace(row, state=UNKNOWN) for name, row in listing.nodes.items()}
        listing = replace(listing, nodes=unknown)
    return published, listing


async def _listed(
    inventory: "InventoryWiring",
    expression: str | None,
    note: Callable[[str], None],
    *,
    needs: bool,
) -> InventoryListing:
    try:
        async with inventory.reader(note, warns=False) as view:  # the list shows these nodes itself
            answer = inventory.ask(view, _listing(expression))
    except UnavailableError as error:
        if needs or expression:
            raise
        note(f"nodes without a running agent are not listed: {error}")
        return InventoryListing(nodes={})
    return replace(answer.answer, revision=answer.revision, age=answer.age)


async def _with_last_runs(
    listing: InventoryListing,
    online: Collection[str],
    kv: "KeyValue",
    fleet: "FleetWiring",
    note: Callable[[str], None],
    *,
    now: float,
) -> InventoryListing:
    """Return a listing with the last runs of nodes without a running agent, from their history."""
    offline = sorted(listing.nodes.keys() - online)
    if not offline:
        return listing
    from localpuppet.fleet.history.following import read_runs

    rows = dict(listing.nodes)
    for name in offline[:MAX_LAST_RUNS]:
        try:
            runs, _ = await read_runs(kv, NodeName(name), fleet.verifier, now=now)
        except (InvalidInputError, IntegrityError) as error:
            note(f"{name}: its history is not read: {error}")
            continue
        except UnavailableError as error:
            note(f"the last runs of nodes without a running agent are unknown: {error}")
            break
        rows[name] = rows[name].with_history(runs)
    if len(offline) > MAX_LAST_RUNS:
        left = len(offline) - MAX_LAST_RUNS
        note(f"the last runs of {left} more nodes without a running agent are not read")
    return replace(listing, nodes=rows)


def _listing(expression: str | None) -> "Callable[[InventoryReader], InventoryListing]":
    from localpuppet.fleet.inventory.query.functions import FunctionCall

    query = FunctionCall.of("query", [expression]) if expression else None

    def read(reader: "InventoryReader") -> InventoryListing:
        nodes = {
            str(node.node): NodeRow(
                node=str(node.node), roles=tuple(map(one_line, node.roles)), in_inventory=True
            )
            for node in reader.nodes()
        }
        matching = None if query is None else frozenset(query.answer(reader).names)
        return InventoryListing(nodes=nodes, matching=matching)

    return read


def _rows(
    published: Mapping[str, Mapping[str, Any]], listing: InventoryListing, now: datetime
) -> Iterable[NodeRow]:
    for name in published.keys() | listing.nodes.keys():
        known = listing.nodes.get(name, NodeRow(node=name))
        if name not in published:
            yield known
        else:
            yield NodeRow.of_presence(name, published[name], now=now.timestamp()).beside(known)


def _chosen(
    rows: Iterable[NodeRow],
    listing: InventoryListing,
    now: datetime,
    filters: Mapping[str, Any],
) -> list[NodeRow]:
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
    ahead = (parse_moment(status.get("at")) or now) - now
    is_wrong = ahead > CLOCK_SKEW or -ahead > PRESENCE_TTL + CLOCK_SKEW
    return round(ahead, 3) if is_wrong else None


def wrong_clocks(published: Mapping[str, Mapping[str, Any]], now: float) -> Iterable[str]:
    """Yield the nodes whose clock differs."""
    for name, status in sorted(published.items()):
        if ahead := clock_skew(status, now):
            word = "ahead of" if ahead > 0 else "behind"
            yield f"{name}: its clock is {show_duration(abs(ahead))} {word} this machine's"


def _record(row: NodeRow, published: Mapping[str, Any] | None, now: datetime) -> dict[str, Any]:
    """Return a node as JSON: what it published, and the dashboard's words for it."""
    from localpuppet.base.formats.records import to_record

    return {
        **(published or {"schema": SCHEMA, "node": row.node, "holds": []}),
        "last_run": None if row.last is None else to_record(row.last),
        "state": row.state,
        "outcome": str(row.outcome),
        "late": row.late(now.timestamp()),
        "clock_skew": clock_skew(published or {}, now.timestamp()),
        "release": row.release,
        "finished_at": _moment(row.finished_at),
        "roles": list(row.roles),
    }


def _moment(seconds: float | None) -> str | None:
    return None if seconds is None else show_time(datetime.fromtimestamp(seconds, UTC))
