"""`localpuppet rollout run` and `resume`: carry a plan out, to its end."""

import time
from typing import TYPE_CHECKING, Any

import click

from localpuppet.cli import render
from localpuppet.cli.orchestrator.site_options import (
    names_in,
    read_plan,
    site_options,
    without_collector,
)
from localpuppet.errors import InvalidInputError, UnavailableError
from localpuppet.formats.names import NodeName, RolloutId, parse_tag
from localpuppet.formats.text import one_line
from localpuppet.formats.times import parse_duration
from localpuppet.wiring.node import NodeWiring

if TYPE_CHECKING:
    from localpuppet.orchestrator.rollout.events import Began
    from localpuppet.orchestrator.rollout.journal import Journal
    from localpuppet.orchestrator.rollout.options import RolloutOptions
    from localpuppet.orchestrator.rollout.selecting import Consumers, Groups
    from localpuppet.wiring.rollout import RolloutWiring

MAX_TITLE = 100
_JSON = click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
_EXITS = """
Exit codes: 0 every node succeeded, 1 not every node did, 2 the selection matches no node,
69 the bus is away, 75 another process goes on with it.
"""


@click.command(
    "run",
    short_help="Run the nodes of a plan, in its order.",
    epilog=f"""\b
Examples:
  localpuppet rollout run --site site.yaml
  localpuppet rollout run --site site.yaml --batch 25% --max-failures 2
  localpuppet rollout run --site site.yaml --noop
  localpuppet rollout run --query role=web --order none --window 5
  localpuppet rollout run --failed-of 20261122T110000Z-0a1b --site site.yaml

\b
^C: no more nodes start, those that run end, all are given back.
Twice: without waiting for those that run.
{_EXITS}""",
)
@site_options(required=False)
@click.option("--query", metavar="QUERY", help="The nodes that this finds in the inventory.")
@click.option(
    "--order",
    type=click.Choice(["site", "none"]),
    default="site",
    show_default=True,
    help="none: without a site, the nodes of --query and --nodes are one group.",
)
@click.option(
    "--failed-of", "parent", metavar="ID", help="Only what did not succeed in ID, with its options."
)
@click.option(
    "--canary",
    type=click.IntRange(min=1),
    metavar="N",
    help="So many nodes of each group go first.",
)
@click.option("--batch", metavar="N|N%", help="So many of a group together, then the next ones.")
@click.option(
    "--window", type=click.IntRange(min=1), metavar="N", help="So many of a group at a time."
)
@click.option("--max-failures", metavar="N|N%", help="So many nodes may fail.  [default: 0]")
@click.option("--noop", is_flag=True, help="Change nothing; show what would change.")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="Apply only what has this tag.")
@click.option("--timeout", metavar="TIME", help="Wait so long for each run's end.  [default: 1h]")
@click.option("--skip-unready", is_flag=True, help="Leave out nodes that are not ready.")
@_JSON
@click.pass_obj
def run_command(node: NodeWiring, /, as_json: bool, **given: Any) -> int:  # noqa: ANN401
    """Run Puppet on the nodes of a plan: groups one after the other.

    All nodes are asked first whether they are ready; then all are held, and nothing but this
    rollout makes them run until it is over. A node that does not tell how its run ended has failed.
    Each node's policy must allow you `status`, `disable`, `enable` and `runonce`.
    """
    from localpuppet.orchestrator.rollout.events import Began
    from localpuppet.wiring.rollout import RolloutWiring
    from localpuppet.wiring.run_async import run

    wiring = RolloutWiring(node)
    options, parent, nodes = _options(wiring, given)
    with without_collector():
        groups, consumers, title = _groups(node, given, nodes)
    began = Began(
        id=wiring.new_id(),
        caller=wiring.caller,
        groups=groups,
        options=options,
        title=title,
        consumers=consumers,
        parent=parent,
    )
    return run(_begin(wiring, began, as_json=as_json))


@click.command(
    "resume",
    short_help="Go on with a rollout that was interrupted or stopped.",
    epilog=f"""\b
Examples:
  localpuppet rollout resume
  localpuppet rollout resume 20261122T110000Z-0a1b
{_EXITS}""",
)
@click.argument("rollout", required=False, metavar="[ID]")
@_JSON
@click.pass_obj
def resume_command(node: NodeWiring, rollout: str | None, as_json: bool) -> int:
    """Go on with the rollout ID, or the newest that can: with what it was begun with.

    A run that was started is not started again: its node is asked how it ended.
    """
    from localpuppet.wiring.rollout import RolloutWiring
    from localpuppet.wiring.run_async import run

    wiring = RolloutWiring(node)
    if rollout is None:
        journal = wiring.journals.newest(lambda state: state.resumable, what="can go on")
    else:
        journal = wiring.journals.open(RolloutId.parse(rollout))
    return run(_resume(wiring, journal, as_json=as_json))


async def _begin(wiring: "RolloutWiring", began: "Began", *, as_json: bool) -> int:
    from localpuppet.cli.orchestrator.rollout_text import Progress
    from localpuppet.cli.progress import shown

    observer = render.observer(quiet=as_json, title="asking whether all are ready")
    async with shown(observer):
        journal = await wiring.begin(began, Progress(observer, time.monotonic).take)
    return told(journal, as_json=as_json)


async def _resume(wiring: "RolloutWiring", journal: "Journal", *, as_json: bool) -> int:
    from localpuppet.cli.orchestrator.rollout_text import Progress
    from localpuppet.cli.progress import shown

    observer = render.observer(quiet=as_json, title="asking whether all are ready")
    progress = Progress(observer, time.monotonic)
    progress.replay([event for _, event in journal.events()])
    async with shown(observer):
        await wiring.resume(journal, progress.take)
    return told(journal, as_json=as_json)


def told(journal: "Journal", *, as_json: bool) -> int:
    """Show how a rollout ended, and return the exit code."""
    from localpuppet.cli.orchestrator.rollout_text import outcome
    from localpuppet.orchestrator.rollout.report import Report

    report = Report.of(journal.events(), taken=False)
    journal.close()
    if as_json:
        render.emit_json(report.to_dict())
    else:
        render.emit(outcome(report))
    return 0 if report.succeeded else 1


_OPTIONS = ("canary", "batch", "window", "max_failures", "noop", "tags", "timeout", "skip_unready")


def _options(
    wiring: "RolloutWiring", given: dict[str, Any]
) -> "tuple[RolloutOptions, RolloutId | None, frozenset[NodeName] | None]":
    """Return how, and where it is a second try of which rollout and of which nodes."""
    from localpuppet.orchestrator.rollout.events import Fate
    from localpuppet.orchestrator.rollout.report import Report

    if given["parent"] is None:
        return _new_options(given), None, None
    if any(given[name] for name in _OPTIONS):
        raise click.UsageError("--failed-of takes the options of the earlier rollout")
    parent = RolloutId.parse(given["parent"])
    journal = wiring.journals.open(parent)
    report = Report.of(journal.events(), taken=journal.taken)
    journal.close()
    if report.state.over is None:
        raise InvalidInputError(
            f"is not over: {report.word}", where=str(parent), hint="resume it, or stop it"
        )
    again = (Fate.FAILED, Fate.SILENT, Fate.NOT_REACHED)
    nodes = frozenset(node for node, fate in report.state.fates().items() if fate in again)
    if not nodes:
        raise InvalidInputError("no node failed: nothing is to be done again", where=str(parent))
    return report.state.began.options, parent, nodes


def _new_options(given: dict[str, Any]) -> "RolloutOptions":
    from localpuppet.orchestrator.rollout.amount import Amount
    from localpuppet.orchestrator.rollout.options import NONE, TIMEOUT, RolloutOptions

    batch, failures, timeout = given["batch"], given["max_failures"], given["timeout"]
    return RolloutOptions(
        canary=given["canary"] or 0,
        batch=None if batch is None else Amount.parse(batch, what="--batch"),
        window=given["window"],
        max_failures=NONE
        if failures is None
        else Amount.parse(failures, what="--max-failures", minimum=0),
        noop=given["noop"],
        tags=tuple(parse_tag(tag, where="--tag") for tag in given["tags"]),
        timeout=TIMEOUT if timeout is None else parse_duration(timeout, what="timeout"),
        skip_unready=given["skip_unready"],
    )


def _groups(
    node: NodeWiring, given: dict[str, Any], again: "frozenset[NodeName] | None"
) -> "tuple[Groups, Consumers, str]":
    """Return the groups, who needs whom, and what it is called."""
    from localpuppet.orchestrator.rollout import selecting

    source, query = given["source"], given["query"]
    if given["order"] == "none":
        if source is not None or given["instances"]:
            raise click.UsageError("--order none does not go with --site and --instance")
        if query is None and not given["nodes"] and again is None:
            raise click.UsageError("--order none needs --query or --nodes")
        nodes = _found(node, query, given["nodes"], again)
        title = f"the answer to {query}" if query else "nodes without an order"
        return selecting.one_group(nodes), {}, one_line(title)[:MAX_TITLE]
    if source is None:
        raise click.UsageError("say --site FILE, or --order none with --query or --nodes")
    if query is not None:
        raise click.UsageError("--query goes with --order none")
    plan = read_plan(node, source, given["instances"], given["nodes"])
    groups = selecting.groups_of(plan)
    if again is not None:
        groups = selecting.only(groups, again)
    title = one_line(", ".join(plan.applications))
    return groups, selecting.consumers_of(plan), title[:MAX_TITLE]


def _found(
    node: NodeWiring, query: str | None, nodes: tuple[str, ...], again: "frozenset[NodeName] | None"
) -> "frozenset[NodeName]":
    """Return the nodes that all of these name."""
    found = again
    if query is not None:
        answer = frozenset(_answer(node, query))
        found = answer if found is None else found & answer
    if nodes:
        named = frozenset(names_in(nodes))
        found = named if found is None else found & named
    return found or frozenset()


def _answer(node: NodeWiring, query: str) -> "list[NodeName]":
    from localpuppet.inventory.query.functions import Question
    from localpuppet.inventory.reading import CouldNotAsk
    from localpuppet.wiring.inventory import InventoryWiring
    from localpuppet.wiring.run_async import run

    calls = InventoryWiring(node).calls(render.Silent().note)
    found = run(calls.ask(Question.of("query", [query])))
    if isinstance(found, CouldNotAsk):
        raise UnavailableError(f"could not be asked: {found.reason}", where="inventory")
    return [NodeName.parse(name) for name in found.answer.names]
