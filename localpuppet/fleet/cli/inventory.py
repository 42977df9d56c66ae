"""`localpuppet inventory` and `query`: the data that nodes publish after their runs."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.strict_json import loads_again
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.times import show_duration
from localpuppet.base.formats.values import Json
from localpuppet.fleet.app import FleetApp, run
from localpuppet.fleet.cli.requests import known_nodes
from localpuppet.fleet.inventory.entry import NOTHING, text_of
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render, render_run
from localpuppet.node.cli.command import (
    CommandGroup,
    command,
    confirm,
    confirmation_options,
    flag,
    option,
)

if TYPE_CHECKING:
    from localpuppet.fleet.exports.held import RefusedExports
    from localpuppet.fleet.exports.resource import Offer
    from localpuppet.fleet.inventory.entry import InventoryEntry
    from localpuppet.fleet.inventory.query.functions import FunctionReply
    from localpuppet.fleet.inventory.reading import InventoryAnswer, InventoryReader


MODULES = {
    "exports": "fleet.cli.inventory",
    "facts": "fleet.cli.inventory",
    "forget": "fleet.cli.inventory",
    "publish": "fleet.cli.inventory",
}


@click.group(cls=CommandGroup, sections={"Commands": MODULES})
def inventory_command() -> None:
    """Show and maintain what nodes publish about themselves.

    After each good run, a node publishes a signed entry over the bus: its facts, classes, roles,
    release and exported resources. Each node keeps a copy of all entries. 'localpuppet query'
    searches them.

    Examples:
      localpuppet inventory facts web01.example.com
      localpuppet inventory facts --summary os.family
      localpuppet inventory exports --type concat::fragment
      localpuppet inventory forget old01.example.com
    """


@command("exports", exits={69: "the inventory is unreachable"})
@click.argument("name", metavar="[NODE]", required=False)
@option("--type kind TYPE", "Only of this type (concat::fragment).")
@option("--title TITLE", "Only with this title.")
@flag(
    "--policy lines", "Print the missing lines of policies/collect.policy that would accept them."
)
@flag("--json as_json", "Print JSON, with all parameters.")
@click.pass_obj
def exports_command(
    node: NodeApp,
    name: str | None,
    kind: str | None,
    title: str | None,
    *,
    lines: bool,
    as_json: bool,
) -> None:
    """Show the exported resources of nodes.

    They are from the last good run of each node, or of NODE. They count only with the node's
    signature, and remain until the node exports something else or is forgotten.

    With --policy, the command prints lines and writes nothing. Resource types that always grant
    code or a right on this node get one line for each title, with a mark. The resources that the
    current policy accepts are listed on standard error.

    Examples:
      localpuppet inventory exports
      localpuppet inventory exports web01.example.com --json | jq .exports
      localpuppet inventory exports --type concat::fragment --title haproxy_web01
      localpuppet inventory exports --policy >> /etc/puppet/policies/collect.policy
    """
    from localpuppet.fleet.exports.resource import named_type

    kind = None if kind is None else named_type(kind)
    owner = None if name is None else _known(FleetApp(node), name)
    offers, refused = run(_held(node, owner, kind))
    offers = [offer for offer in offers if title in (None, offer.resource.title)]
    if lines:
        _propose(node, offers, as_json=as_json)
    elif as_json:
        rows = [{"node": offer.node, **offer.resource.to_dict()} for offer in offers]
        problems = [{"node": refusal.node, "reason": refusal.reason} for refusal in refused]
        render.emit_json({"schema": 1, "exports": rows, "refused": problems})
    else:
        _show(offers, refused)


def _show(offers: "list[Offer]", refused: "list[RefusedExports]") -> None:
    if offers:
        rows = [
            (offer.node, offer.resource.type, render.user_text(offer.resource.title))
            for offer in offers
        ]
        render.emit(render.table(("NODE", "TYPE", "TITLE"), rows, spare=()))
    else:
        render.emit("no node exports that")
    for problem in refused:
        render.note(
            f"warning: ignoring exports of {problem.node} since its last run: {problem.reason}"
        )


def _propose(node: NodeApp, offers: "list[Offer]", *, as_json: bool) -> None:
    from localpuppet.fleet.cli.node_records import would_take
    from localpuppet.fleet.exports.collectors import proposed
    from localpuppet.fleet.exports.recording import read_collect_policy

    fleet = FleetApp(node)
    policy_file = fleet.peers.collect_policy
    proposal = proposed(offers, me=fleet.name, policy=read_collect_policy(policy_file))
    asked = fleet.would_take()
    if asked and not as_json:  # on stderr: a user may redirect the lines into the file
        render.say(would_take(asked), err=True)
    if as_json:
        collectors = [collector.to_dict() for collector in asked]
        render.emit_json({"schema": 1, "lines": proposal, "collectors": collectors})
    elif proposal:
        render.emit("\n".join(proposal))
    else:
        render.note(f"{policy_file} lacks nothing")


async def _held(
    node: NodeApp, name: NodeName | None, kind: str | None
) -> "tuple[list[Offer], list[RefusedExports]]":
    fleet = FleetApp(node)
    entries, held = fleet.entries, fleet.held_exports

    def look(reader: Any) -> "list[Offer]":  # noqa: ANN401 - an InventoryReader
        if name is not None and reader.entry(name) is None:
            raise InvalidInputError(
                f"{name} is not in the inventory",
                hint="'localpuppet nodes' lists the nodes on the bus",
            )
        return list(held.find(node=name, kind=kind))

    try:
        async with entries.reader(render.note) as view:
            offers = entries.ask(view, look).answer
            refused = [
                refusal for refusal in held.refused().values() if name in (None, refusal.node)
            ]
    finally:
        held.close()
    return offers, refused


T = TypeVar("T")


@command("facts", exits={69: "the inventory is unreachable or too old"})
@click.argument("name", metavar="[NODE]", required=False)
@option("--summary path FACT", "Count nodes by the value of this fact.")
@flag("--json as_json", "Print JSON.")
@click.pass_obj
def facts_command(node: NodeApp, name: str | None, path: str | None, as_json: bool) -> None:
    """Show the facts of a node, or the values of a fact.

    The facts are from the last good run of NODE. They count only with the node's signature. If this
    node's copy of the inventory is too old (inventory.max_stale), the command fails.

    Examples:
      localpuppet inventory facts web01.example.com
      localpuppet inventory facts web01.example.com --json | jq .entry.facts.os
      localpuppet inventory facts --summary os.family      count nodes by value
      localpuppet inventory facts --summary role
    """
    if (name is None) == (path is None):
        raise click.UsageError("name a node, or a fact with --summary")
    inventory = FleetApp(node)
    inventory.require_bus()
    if name is not None:
        _show_facts(node, inventory, _known(inventory, name), as_json=as_json)
    elif path is not None:
        _summarise(inventory, path, as_json=as_json)


def _known(fleet: FleetApp, name: str) -> NodeName:
    """Return the known node that a name means, which may be a short one."""
    (known,) = run(known_nodes(fleet, [NodeName.parse(name)], short=True))
    return known


def _show_facts(node: NodeApp, inventory: FleetApp, name: NodeName, *, as_json: bool) -> None:
    answer, refused = run(read_entry(inventory, name))
    entry = answer.answer
    if entry is None:
        raise InvalidInputError(
            f"{name} is not in the inventory" + (f": {refused}" if refused else ""),
            hint="its first successful run adds it; 'localpuppet nodes' lists the running agents",
        )
    if as_json:
        document = {"entry": entry.to_dict(), "refused": refused}
        render.emit_json({"schema": 1, **_freshness(answer), **document})
        return
    age = render_run.ago(datetime.fromtimestamp(entry.at, UTC).isoformat(), node.clock.now())
    head = [
        ("Node", str(entry.node)),
        ("Published", f"{age}, after run {entry.run}"),
        ("Release", one_line(entry.release or "")),
        ("Roles", ", ".join(map(one_line, entry.roles)) or "none"),
    ]
    if refused:
        head.append(("Since then", f"what it publishes does not count: {refused}"))
    render.emit(render.pairs(head))
    rows = [(one_line(path), one_line(text)) for path, text in lines(entry.facts)]
    render.emit(render.table(("FACT", "VALUE"), rows, spare=()))


def _summarise(inventory: FleetApp, path: str, *, as_json: bool) -> None:
    answer = run(inventory.entries.answer(lambda reader: counts(reader, path), render.note))
    if as_json:
        values = [{"value": value, "nodes": number} for value, number in answer.answer]
        render.emit_json({"schema": 1, **_freshness(answer), "fact": path, "values": values})
    elif answer.answer:
        rows = [(str(number), one_line(value)) for value, number in answer.answer]
        render.emit(render.table(("NODES", "VALUE"), rows, spare=()))
        if [value for value, _ in answer.answer] == [NOTHING]:
            render.note(f"warning: no node has the fact {one_line(path)}")
    else:
        render.emit("the inventory is empty; a node's first successful run adds it")


def counts(reader: "InventoryReader", path: str) -> list[tuple[str, int]]:
    """Return each value of a fact with its number of nodes, the most frequent first.

    The path is dotted, or `role`, where a node counts once for each of its roles.
    """
    from localpuppet.fleet.inventory.query import tree
    from localpuppet.fleet.inventory.query.evaluating import Evaluation

    counter: Counter[str] = Counter()
    if path == tree.ROLE.column:
        for node in reader.nodes():
            counter.update(node.roles or (NOTHING,))
    else:
        first, *rest = path.split(".")
        field = tree.Field(column="facts", path=(first, *map(tree.parse_step, rest)))
        select = tree.Select(entity=tree.Entity.INVENTORY, columns=(field,))
        for (text,) in Evaluation(reader).table(select):
            counter[text_of(loads_again(text.encode()))] += 1
    return sorted(counter.items(), key=lambda pair: (-pair[1], pair[0]))


def lines(facts: Mapping[str, Json], place: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted path and the text of each fact that is not a mapping, sorted."""
    for key in sorted(facts):
        value = facts[key]
        if isinstance(value, dict) and value:
            yield from lines(value, f"{place}{key}.")
        else:
            yield f"{place}{key}", text_of(value)


async def read_entry(
    inventory: FleetApp, name: NodeName
) -> tuple["InventoryAnswer[InventoryEntry | None]", str]:
    """Return a node's entry, and why a newer one was rejected; empty if none was."""
    async with inventory.entries.reader(render.note) as view:
        answer = inventory.entries.ask(view, lambda reader: reader.entry(name))
        refused = {refusal.node: refusal.reason for refusal in view.refused()}
    return answer, refused.get(name, "")


def _freshness(answer: "InventoryAnswer[T]") -> dict[str, int | float]:
    """Return the bus's revision that an answer is from, and its age in seconds."""
    return {"revision": answer.revision, "age": answer.age}


@command("forget", exits={1: "you answered no", 69: "the bus is unreachable"})
@click.argument("name", metavar="NODE")
@confirmation_options
@click.pass_obj
def forget_command(node: NodeApp, name: str, dry_run: bool, yes: bool) -> None:
    """Remove a node's entry from the inventory of all nodes.

    Each node removes the entry if its own policy allows you `forget` ('*' does not include it). A
    later good run of NODE adds an entry again, unless its key is revoked.

    Examples:
      localpuppet inventory forget old01.example.com
      localpuppet inventory forget old01.example.com --yes     in a script
    """
    forgotten = NodeName.parse(name)
    if "." not in name:  # a node that is gone has its whole name only
        forgotten = _known(FleetApp(node), name)
    step = f"remove the entry of {forgotten} from the inventory of all nodes"
    if dry_run:
        render.emit(f"would {step}")
        return
    confirm(step, yes=yes)
    run(FleetApp(node).forget(forgotten))
    render.emit(f"sent: each node removes the entry of {forgotten} if its policy allows 'forget'")


@command("publish", exits={1: "", 69: "the bus is unreachable"})
@flag("--dry-run", "Print the entry as JSON; publish nothing.")
@click.pass_obj
def publish_command(node: NodeApp, dry_run: bool) -> None:
    """Publish this node's inventory entry and history.

    The entry has the facts, roles, classes and exported resources of the last good run; the history
    has a summary of each run. A running agent publishes both after each run. Without an agent, the
    run publishes them if localpuppet.yaml names a bus. You need this command only after an outage.

    Examples:
      localpuppet inventory publish             after an outage of the bus
      localpuppet inventory publish --dry-run   show what other nodes receive
    """
    fleet = FleetApp(node)
    if dry_run:
        entry = fleet.publishing.outbox.entry()
        render.emit_json({"schema": 1, "entry": None if entry is None else entry.to_dict()})
        return
    news = run(fleet.publish(render.note))
    if news is None:
        render.emit("no entry to publish: this node has no complete successful run yet")
    else:
        render.emit("published" if news else "published before: nothing changed")


FORMATS = ("table", "bolt")
RENAMED = {"--facts": "--show"}


@command(
    "query",
    renamed=RENAMED,
    exits={69: "the inventory is unreachable or too old"},
)
@click.argument("expression")
@option("--show listed FACT,…", "Show these facts, too (networking.ip).")
@flag("--count only_count", "Print the number of nodes.")
@option(
    "--format form",
    "bolt: an inventory file of Puppet Bolt, in YAML.",
    type=click.Choice(FORMATS),
    default="table",
    show_default=True,
)
@flag("--json as_json", "Print JSON, with revision and age.")
@click.pass_obj
def query_command(
    node: NodeApp,
    expression: str,
    listed: str | None,
    as_json: bool,
    only_count: bool,
    form: str,
) -> None:
    """Show the nodes that match an expression.

    EXPRESSION has conditions: FACT OPERATOR VALUE with = != ~ !~ < <= > >= (os.family=Debian),
    role=NAME, Class[NAME], @@Type[TITLE] for exported resources, or a part of a node's name.
    Combine them with not, and, or. An empty expression ('') matches every node.

    Facts are from each node's last good run and count only with its signature. If this node's copy
    of the inventory is too old (inventory.max_stale), the command fails.

    Examples:
      localpuppet query 'role=web and os.family=Debian'
      localpuppet query 'Class[Profile::Lb]' --show networking.ip,os.name
      localpuppet query 'not role=web' --count
      localpuppet query 'puppetversion<version("7.20")' --json
      localpuppet query role=web --format bolt > inventory.yaml
      localpuppet query ''                                      every node
    """
    if as_json + only_count + (form != "table") > 1:
        raise click.UsageError("--json, --count and --format exclude each other")
    paths = [path.strip() for path in (listed or "").split(",") if path.strip()]
    if form == "bolt":
        paths.append("networking.ip")
    arguments: list[Json] = [expression]
    if paths:
        arguments.append([*paths])
    reply = asked_query(node, arguments)
    names = list(reply.answer.names)
    facts = reply.answer.result if isinstance(reply.answer.result, dict) else {}
    if as_json:
        nodes = [{"node": name, "facts": facts.get(name, {})} for name in names]
        document = {"revision": reply.revision, "age": reply.age, "digest": reply.answer.digest}
        render.emit_json({"schema": 1, **document, "nodes": nodes})
    elif only_count:
        render.emit(str(len(names)))
    elif form == "bolt":
        render.emit(_bolt(names, facts, wanted=paths[:-1]))
    elif names:
        render.emit(_table(names, facts, paths))
        if reply.age >= 1:
            render.emit(f"as the inventory was {show_duration(reply.age)} ago")
    else:
        render.emit("no node of the inventory matches")


def asked_query(node: NodeApp, arguments: Sequence[Json]) -> "InventoryAnswer[FunctionReply]":
    """Return the answer to `query` with these arguments."""
    from localpuppet.fleet.inventory.query.functions import FunctionCall

    calls = FleetApp(node).inventory_calls(render.note)
    reply = run(calls.ask(FunctionCall.of("query", [*arguments])))
    if isinstance(reply, str):
        raise UnavailableError(f"cannot answer the query: {reply}", where="inventory")
    for text in reply.answer.unknown:
        render.note(f"warning: {text}")
    return reply


def _table(names: Sequence[str], facts: Mapping[str, Json], paths: Sequence[str]) -> str:
    rows = []
    for path in paths:
        if all(_value(facts, name, path) is None for name in names):
            render.note(f"warning: none of these nodes has the fact {one_line(path)}")
    for name in names:
        rows.append([name, *(_cell(_value(facts, name, path)) for path in paths)])
    return render.table(["NODE", *map(one_line, paths)], rows)


def _value(facts: Mapping[str, Json], name: str, path: str) -> Json:
    about = facts.get(name)
    return about.get(path) if isinstance(about, dict) else None


def _cell(value: Json) -> str:
    if value is None:
        return "-"
    return one_line(value if isinstance(value, str) else json.dumps(value))


def _uri(address: Json, name: str) -> str:
    """Return the URI under which Bolt reaches a node.

    A fact that is not an IP address is ignored: with `local://`, Bolt would run commands here.
    """
    from ipaddress import ip_address

    try:
        parsed_address = ip_address(address) if isinstance(address, str) else None
    except ValueError:
        parsed_address = None
    # Bolt's URIs require brackets around the colons of IPv6.
    return (
        name
        if parsed_address is None
        else f"[{parsed_address}]"
        if parsed_address.version == 6
        else str(parsed_address)
    )


def _bolt(names: Sequence[str], facts: Mapping[str, Json], *, wanted: Sequence[str]) -> str:
    """Return an inventory of Bolt: https://www.puppet.com/docs/bolt/latest/inventory_files.html."""
    import yaml

    targets = []
    for name in names:
        about = facts.get(name)
        known = about if isinstance(about, dict) else {}
        target: dict[str, Json] = {"name": name, "uri": _uri(known.get("networking.ip"), name)}
        shown: dict[str, Json] = {path: known.get(path) for path in wanted}
        targets.append({**target, "facts": shown} if shown else target)
    text: str = yaml.safe_dump({"version": 2, "targets": targets}, sort_keys=False)
    return text.rstrip("\n")
