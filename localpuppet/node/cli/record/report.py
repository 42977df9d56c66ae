"""`localpuppet report`: what a run did, resource by resource."""

import click

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.json_file import read_json
from localpuppet.base.formats.text import folded
from localpuppet.node.cli import render, render_run
from localpuppet.node.cli.command import command, flag, option
from localpuppet.node.cli.completion import RunCommand, complete_run
from localpuppet.node.cli.node_options import node_option
from localpuppet.node.cli.record import queries
from localpuppet.node.cli.render_resources import SECTIONS, sections, shortener, title
from localpuppet.node.puppet.resources import ReportedResource, resources_of, slowest
from localpuppet.node.runs.query_record import read_queries
from localpuppet.node.runs.records import RunDirectory
from localpuppet.node.runs.run import RunState, Status
from localpuppet.node.wiring.node import NodeWiring
from localpuppet.node.wiring.state import open_records

SLOWEST = 5
# Lines of Puppet's output that are shown without a report, and characters that are read for them.
FIRST_LINES = 20
MAX_OUTPUT = 65536


@command(
    "report",
    RunCommand,
    exits={
        0: "the report is shown, whatever the result of the run",
        1: "the run has no report; a node refused to answer",
        69: "a node did not answer",
    },
)
@click.argument("run", required=False, shell_complete=complete_run)
@option(
    "-l --limit",
    "Show at most this number of resources of a kind.",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
)
@node_option
@flag("--json as_json", "Print JSON, with every resource.")
@click.pass_obj
def report_command(
    node: NodeWiring, run: str | None, limit: int, nodes: tuple[str, ...], as_json: bool
) -> int:
    r"""Show what a run did, resource by resource.

    RUN is the beginning or end of an id, or -1 for the run before the newest. The output has
    failed, changed, skipped and slow resources with their files and lines. Puppet's messages may
    contain values of resources, such as passwords. If Puppet wrote no report, the output has the
    first lines that it printed.

    With --node, ask other nodes; their policies must allow you `report`, and RUN must be a whole
    id.

    Examples:
      localpuppet report                 of the newest run
      localpuppet report -1              of the run before it
      localpuppet report --json | jq -r '.failed[] | "\(.file):\(.line)"'
      localpuppet report --node web01.example.com
    """
    if nodes:
        return node.additions.ask(nodes, "report", as_json=as_json, run=run)
    records = open_records(node)
    directory = records.get(run)
    status = records.status(directory)
    resources = _read(directory)
    asked = read_queries(directory)
    addition = node.additions.report(directory)
    if as_json:
        kinds = {
            result.value: [item.to_dict() for item in resources or () if item.result is result]
            for result, _, _ in SECTIONS
        }
        longest = [item.to_dict() for item in slowest(resources or [], SLOWEST)]
        render.emit_json(
            {
                "schema": 1,
                "run": status.to_dict(),
                "report": resources is not None,
                **kinds,
                "slowest": longest,
                "queries": [query.to_dict() for query in asked],
                **addition.fields,
            }
        )
        return 0 if resources is not None else 1
    render.emit(render.pairs(_head(status)))
    if asked:
        render.emit(f"\n{queries.lines(asked)}")
    for text in addition.paragraphs:
        render.emit(f"\n{text}")
    if resources is None:
        is_active = status.state is not RunState.FINISHED
        why = "the run is active" if is_active else "Puppet wrote none"
        render.emit(f"\nno report of this run: {why}")
        _show_output(directory)
        return 1
    shorten = shortener(node.settings.modules, node.settings.root)
    for text in sections(resources, limit, shorten):
        render.emit(f"\n{text}")
    slow = slowest(resources, SLOWEST)
    if slow:
        render.emit(f"\n{click.style('Slowest', bold=True)}")
        render.emit("\n".join(title(resource) for resource in slow))
    return 0


def _read(run: RunDirectory) -> list[ReportedResource] | None:
    try:
        return resources_of(read_json(run.report))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise InvalidInputError(str(error), where=str(run.report)) from error


def _show_output(run: RunDirectory) -> None:
    """Show the first lines that Puppet printed, repeated ones once."""
    try:
        with run.log.open("r", encoding="utf-8", errors="backslashreplace") as log:
            text = log.read(MAX_OUTPUT)
    except OSError:
        return  # the head has the reason
    lines = [*folded(text.splitlines())]
    if lines:
        render.emit(f"\n{click.style('Puppet printed', bold=True)}")
    for line in lines[:FIRST_LINES]:
        render.emit(render.hanging("  ", render.puppet_line(render.user_text(line))))
    if len(lines) > FIRST_LINES or len(text) == MAX_OUTPUT:
        render.emit(f"  the rest: 'localpuppet logs {run.id}'")


def _head(status: Status) -> list[tuple[str, str]]:
    counts = render_run.counts(status)
    took = render_run.took(status)
    word = render.word(render_run.state_word(status), noop=status.noop)
    return [
        ("Run", status.id),
        render_run.code(status),
        ("Outcome", ", ".join(filter(None, [word, counts, took]))),
        ("Reason", render.user_text(status.reason)),
    ]
