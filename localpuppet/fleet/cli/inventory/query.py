"""`localpuppet query`: shows which nodes match an expression, and their facts."""

import json
from collections.abc import Mapping, Sequence

import click

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.times import show_duration
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.reading import UnansweredQuery
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import command, flag, option

FORMATS = ("table", "bolt")


@command("query", exits={69: "the inventory is unreachable or too old"})
@click.argument("expression")
@option("--facts listed A,B", "Show these facts, too (networking.ip).")
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
      localpuppet query 'Class[Profile::Lb]' --facts networking.ip,os.name
      localpuppet query 'not role=web' --count
      localpuppet query 'puppetversion<version("7.20")' --json
      localpuppet query role=web --format bolt > inventory.yaml
      localpuppet query ''                                      every node
    """
    from localpuppet.fleet.inventory.query.functions import FunctionCall
    from localpuppet.fleet.wiring.fleet import run
    from localpuppet.fleet.wiring.inventory import InventoryWiring

    if as_json + only_count + (form != "table") > 1:
        raise click.UsageError("--json, --count and --format exclude each other")
    paths = [path.strip() for path in (listed or "").split(",") if path.strip()]
    if form == "bolt":
        paths.append("networking.ip")
    arguments: list[Json] = [expression]
    if paths:
        arguments.append([*paths])
    calls = InventoryWiring(node).calls(render.QuietObserver().note)
    reply = run(calls.ask(FunctionCall.of("query", arguments)))
    if isinstance(reply, UnansweredQuery):
        raise UnavailableError(f"cannot answer the query: {reply.reason}", where="inventory")
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


def _table(names: Sequence[str], facts: Mapping[str, Json], paths: Sequence[str]) -> str:
    rows = []
    for name in names:
        about = facts.get(name)
        values = [about.get(path) for path in paths] if isinstance(about, dict) else []
        rows.append([name, *(_cell(value) for value in values)])
    return render.table(["NODE", *map(one_line, paths)], rows)


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
