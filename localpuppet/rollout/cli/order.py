"""The order in which the nodes of a site run: read for commands, and printed."""

import gc
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.formats.names import NodeName, check_known
from localpuppet.base.formats.text import shown_names
from localpuppet.fleet.app import FleetApp
from localpuppet.fleet.cli.requests import chosen
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import ANY, option, options, path_type, selects_nodes
from localpuppet.node.node_ports import NodeSelection
from localpuppet.rollout.plan import Plan, PlanSelection, Run, make_plan
from localpuppet.rollout.site import SiteComponent

if TYPE_CHECKING:
    from localpuppet.base.formats.values import Json
    from localpuppet.fleet.inventory.reading import InventoryReader
    from localpuppet.rollout.derived import DerivedPlan


_SITE = options(
    "Site",
    option(
        "--instance instances NAME",
        "Only nodes of this application instance (repeatable).",
        multiple=True,
    ),
    option(
        "--site source FILE|URL",
        "A site file, Puppet's environment graph (JSON), '-' for standard input, an https "
        "URL of a Puppet server, or srv:ENVIRONMENT.  [default: the inventory]",
    ),
    *(
        click.option(f"--site-{name}", metavar="FILE", type=path_type(), help=text)
        for name, text in (
            ("cert", "Client certificate for that server.  [default: the node's identity]"),
            ("key", "Its private key."),
            ("ca", "CA of that server.  [default: that of the identity, or https_ca]"),
        )
    ),
    option(
        "--order",
        "none: all selected nodes are one group; requires NODE, --query or --role.",
        type=click.Choice(["site", "none"]),
        default="site",
        show_default=True,
    ),
)


def site_options(command: Any) -> Any:  # noqa: ANN401
    """Add the options for a site and a selection to a command."""
    return selects_nodes(ANY, of_all=True)(_SITE(command))


def read_plan(node: NodeApp, given: Mapping[str, Any], *, acts: bool = False) -> Plan:
    """Return the plan of a site or of the inventory, narrowed by the options."""
    from localpuppet.rollout.site_file import DEFAULT, OWN, place, read_site, site_url

    source, instances = given["source"], tuple(dict.fromkeys(given["instances"]))
    selection: NodeSelection = given["selection"]
    if source is None:
        return _inventory_plan(node, instances, selection, acts=acts)
    if selection.roles or selection.query is not None:
        raise click.UsageError("--role and --query select nodes of the inventory: leave out --site")
    certificate, key = given["site_cert"], given["site_key"]
    if (certificate is None) != (key is None):
        raise click.UsageError("--site-cert and --site-key require each other")
    server, default = None, ""
    if source.startswith(OWN):
        source, default = site_url(source, FleetApp(node).name), DEFAULT
    if source.startswith("https://"):
        from localpuppet.rollout.app import site_server

        server = site_server(
            node, ca=given["site_ca"], certificate=certificate, key=key, default=default
        )
    site = read_site(source, node.documents, server)
    nodes = _of_site(node, selection, {component.node for component in site.components})
    return make_plan(site, PlanSelection(instances=instances, nodes=nodes), where=place(source))


def _of_site(
    node: NodeApp, selection: NodeSelection, known: Collection[NodeName]
) -> tuple[NodeName, ...]:
    """Return the nodes that a selection names among those of a site; empty for all."""
    named = tuple(NodeName.parse(name) for name in dict.fromkeys(selection.nodes))
    if selection.failed_in is None and not selection.without:
        return named
    failed = known if selection.failed_in is None else node.failed_in(selection.failed_in)
    for name in selection.without:
        check_known(name, known, f"unknown node {name!r}", where="--without")
    names = (name for name in named or sorted(known) if name in failed)
    nodes = tuple(name for name in names if name not in selection.without)
    if not nodes:
        raise InvalidInputError("the selection matches no node", where="site")
    return nodes


@contextmanager
def without_collector() -> Iterator[None]:
    """Suspend Python's cyclic garbage collector: a plan allocates many values that all stay.

    The collector would take half of the time of a large plan.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def show(plan: Plan, form: str | None) -> None:
    """Print a plan in a form; `None` chooses one for the terminal or pipe."""
    if form == "json":
        for line in _as_json(plan):
            render.emit(line)
        return
    if form in ("svg", "dot"):
        from localpuppet.rollout.diagram import plan_diagram
        from localpuppet.rollout.svg import render_diagram

        render.emit(render_diagram(plan_diagram(plan), form))
        return
    if form is None and render.columns() is not None:
        render.emit(_for_people(plan))
        return
    render.emit(as_choria(plan).removesuffix("\n"))
    if sentence := _repeated(plan):
        render.say(f"# {sentence}", err=True)


MOST_COMPONENTS = 20  # of a run, at a terminal
MOST_NAMES = 4


def as_choria(plan: Plan) -> str:
    """Return a plan as choria's orchestrator printed it, byte for byte, with two differences.

    - The counts are those of the selection.
    - A node that runs more than once has "(run 1 of 2)" after its name; choria rejected such plans.
    """
    lines = [f"Puppet Site Plan for the {_bold(plan.environment)} Environment", ""]
    if not plan.applications:
        return "\n".join([*lines, "No site applications were found in the Puppet environment", ""])
    applications, nodes = _bold(str(len(plan.applications))), _bold(str(len(plan.nodes)))
    lines += [f"{applications} applications on {nodes} managed nodes:", ""]
    lines += [f"\t{name}" for name in plan.applications]
    lines += ["", "Node groups and run order:"]
    dashes, rule = click.style("   ---", fg="green"), click.style("-" * 38, fg="green")
    for number, group in enumerate(plan.groups, 1):
        lines += [f"   {dashes} {_bold(f'Group {number}')} {rule}", ""]
        for run in group:
            lines.append(f"\t{_bold(run.node)}{_which(run)}")
            lines += [
                f"\t\t{application} -> {', '.join(names)}"
                for application, names in run.by_application().items()
            ]
            lines.append("")
    return "\n".join([*lines, ""])


def _as_json(plan: Plan) -> Iterator[str]:
    """Yield the lines of a plan's JSON document, one for each run, to save memory."""
    yield json.dumps(plan.summary())[:-1] + ', "groups": ['
    for number, group in enumerate(plan.groups, 1):
        yield f'{{"group": {number}, "runs": ['
        for place, run in enumerate(group, 1):
            yield json.dumps(run.to_dict()) + ("," if place < len(group) else "")
        yield "]}," if number < len(plan.groups) else "]}"
    yield "]}"


def _for_people(plan: Plan) -> str:
    """Return a plan for a terminal: each run's components, their needs, and the longest chain."""
    if not plan.applications:
        return f"{_bold(plan.environment)} has no applications: nothing would run"
    head = (
        f"{_bold(plan.environment)}: {render.counted(len(plan.applications), 'application')} on "
        f"{render.counted(len(plan.nodes), 'node')}, {render.counted(len(plan.runs), 'run')} in "
        f"{render.counted(len(plan.groups), 'group')}"
    )
    lines = [render.hanging("", head)]
    chain = {(link.group, link.node) for link in plan.chain} if len(plan.groups) > 1 else set()
    for number, group in enumerate(plan.groups, 1):
        lines += ["", _bold(f"Group {number}")]
        for run in group:
            mark = click.style("*", fg="cyan", bold=True) if (number, run.node) in chain else " "
            which = click.style(_which(run), fg="yellow") if run.total > 1 else ""
            lines += [f"{mark} {_bold(run.node)}{which}", *_components(run)]
    lines += _notes(plan)
    return "\n".join(lines)


def _repeated(plan: Plan) -> str:
    """Return a sentence on the nodes that run more than once; empty if there are none."""
    nodes = list(plan.repeated())
    if not nodes:
        return ""
    return (
        f"{_names(nodes)} {'runs' if len(nodes) == 1 else 'run'} more than once: each needs what "
        "another one of these produces, so node by node the order would be a cycle"
    )


def _components(run: Run) -> list[str]:
    lines = [_component(component) for component in run.components[:MOST_COMPONENTS]]
    left = len(run.components) - len(lines)
    if left > 0:
        lines.append(f"    and {render.counted(left, 'component')} more (see --json)")
    return lines


def _component(component: SiteComponent) -> str:
    words = [f"{component.application} {component.name}"]
    if component.consumes:
        words.append(f"needs {_names(component.consumes)}")
    if component.produces:
        words.append(f"gives {_names(component.produces)}")
    if component.checks:
        words.append(render.counted(len(component.checks), "check"))
    return render.hanging("    ", ", ".join(words))


def _notes(plan: Plan) -> list[str]:
    lines = []
    if len(plan.groups) > 1:
        steps = [
            f"{link.node} ({link.capability})" if link.capability else str(link.node)
            for link in plan.chain
        ]
        lines += ["* the longest chain:", render.hanging("    ", " > ".join(_shortened(steps)))]
    if sentence := _repeated(plan):
        lines.append(render.hanging("", sentence))
    if plan.external_capabilities:
        names = _names(plan.external_capabilities)
        text = f"taken for granted, from nodes that are not selected: {names}"
        lines.append(render.hanging("", text))
    return ["", *lines] if lines else []


def _shortened(steps: list[str]) -> list[str]:
    left = len(steps) - 3 * MOST_NAMES
    half = 3 * MOST_NAMES // 2
    return steps if left <= 1 else [*steps[:half], f"… {left} more …", *steps[-half:]]


def _names(names: Sequence[str]) -> str:
    left = len(names) - MOST_NAMES
    return ", ".join([*names[:MOST_NAMES], *([f"and {left} more"] if left > 0 else [])])


def _which(run: Run) -> str:
    return f" (run {run.number} of {run.total})" if run.total > 1 else ""


def _bold(text: str) -> str:
    return click.style(text, bold=True)


NOBODY = (
    "# the inventory has no node yet: a node publishes its entry after a good run, over the bus of"
    " its settings; or name a site with --site"
)
# Seconds for evaluating queries of nodes: an order without all of them could be wrong.
LOOK = 60.0

T = TypeVar("T")


def _inventory_plan(
    node: NodeApp, instances: tuple[str, ...], selection: NodeSelection, *, acts: bool
) -> Plan:
    """Return the plan of the inventory, narrowed by the selection."""
    FleetApp(node).require_bus(selection.nodes)
    plan = _read(node, _derive)
    for note in plan.notes:
        render.note(note)
    if not plan.roles:
        render.say(NOBODY, err=True)
    nodes = (
        chosen(node, selection, acts=acts and bool(selection.nodes), among=plan.roles)
        if selection or selection.without
        else ()
    )
    part = PlanSelection(instances=instances, nodes=tuple(sorted(nodes)))
    return make_plan(plan.site, part, where="inventory")


def _derive(reader: "InventoryReader") -> "DerivedPlan":
    from localpuppet.fleet.edges.links import links_of
    from localpuppet.rollout.derived import derive

    end = time.monotonic() + LOOK
    links = links_of(reader, lambda: time.monotonic() > end)
    if links.unanswered:
        raise UnavailableError(
            f"{links.unanswered} kicks and queries took too long to evaluate: the order could be"
            " wrong",
            where="inventory",
            hint="pass a site file with --site, see 'localpuppet rollout plan --help'",
        )
    return derive(reader.entries(), links)


def fact_of(node: NodeApp, fact: str, nodes: Collection[NodeName]) -> "dict[NodeName, Json]":
    """Return the value of a dotted fact for some nodes; `None` if it or its node is unknown."""
    from localpuppet.fleet.inventory.entry import at_path

    def ask(reader: "InventoryReader") -> "dict[NodeName, Json]":
        entries = {name: reader.entry(name) for name in nodes}
        return {
            name: None if entry is None else at_path(entry.facts, fact)
            for name, entry in entries.items()
        }

    return _read(node, ask)


def refuse_unlisted(
    node: NodeApp, selected: Collection[NodeName], without: Collection[str]
) -> None:
    """Refuse a rollout that nodes could miss because they have no entry in the inventory."""
    from localpuppet.fleet.app import run

    unlisted = run(FleetApp(node).unlisted())
    missing = sorted(set(unlisted.names) - set(selected) - set(without))
    if missing:
        raise InvalidInputError(
            f"the rollout would miss online nodes without an entry: {shown_names(missing)}",
            where="inventory",
            hint="an entry follows a good run; name nodes, or leave these out with --without",
        )


def _read(node: NodeApp, question: "Callable[[InventoryReader], T]") -> "T":
    from localpuppet.fleet.app import run

    inventory = FleetApp(node)

    async def ask() -> T:
        async with inventory.entries.reader(render.note) as view:
            return inventory.entries.ask(view, question).answer

    return run(ask())
