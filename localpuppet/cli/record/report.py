"""`localpuppet report`: what a run did, resource by resource."""

from collections.abc import Callable, Sequence
from pathlib import Path

import click

from localpuppet.cli import render, render_run
from localpuppet.cli.completion import RunCommand, complete_run
from localpuppet.cli.record import collected, queries
from localpuppet.errors import InvalidInputError
from localpuppet.exports.recording import read_collected, read_exports
from localpuppet.formats.json_file import read_json
from localpuppet.formats.text import one_line
from localpuppet.formats.times import parse_time
from localpuppet.puppet.resources import Fate, ReportedResource, resources_of, slowest
from localpuppet.runs.query_record import read_queries
from localpuppet.runs.records import RunDirectory
from localpuppet.runs.run import State, Status
from localpuppet.wiring.node import NodeWiring

SECTIONS = (
    (Fate.FAILED, "Failed", "red"),
    (Fate.CHANGED, "Changed", "green"),
    (Fate.WOULD_CHANGE, "Would change", "yellow"),
    (Fate.SKIPPED, "Skipped", "cyan"),
)
SLOWEST = 5


@click.command(
    "report",
    cls=RunCommand,
    short_help="Show what a run did: failed, changed, skipped and slowest resources.",
    epilog="""\b
Examples:
  localpuppet report                 of the newest run
  localpuppet report -1              of the one before it
  localpuppet report --json | jq -r '.failed[] | "\\(.file):\\(.line)"'

Puppet's messages hold values of resources: what it prints is for this node's operators.
""",
)
@click.argument("run", required=False, shell_complete=complete_run)
@click.option(
    "-l",
    "--limit",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="At most so many resources of a kind.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, every resource of each kind.")
@click.pass_obj
def report_command(node: NodeWiring, run: str | None, limit: int, as_json: bool) -> None:
    """Show what RUN (default: the newest) did to which resource, where that stands, and how long.

    Exits 0 whatever the run's outcome: see status for that.
    """
    directory = node.records.get(run)
    status = node.records.status(directory)
    resources = _read(directory)
    asked = read_queries(directory)
    taken, offered = read_collected(directory), read_exports(directory)
    if as_json:
        kinds = {
            fate.value: [found.to_dict() for found in resources or () if found.fate is fate]
            for fate, _, _ in SECTIONS
        }
        longest = [found.to_dict() for found in slowest(resources or [], SLOWEST)]
        render.emit_json(
            {
                "schema": 1,
                "run": status.to_dict(),
                "report": resources is not None,
                **kinds,
                "slowest": longest,
                "queries": [one.to_dict() for one in asked],
                "collected": [one.to_dict() for one in taken],
                "exports": [one.ref for one in offered],
            }
        )
        return
    render.emit(render.pairs(_head(status)))
    if asked:
        render.emit(f"\n{queries.lines(asked)}")
    if taken or offered:
        render.emit(f"\n{collected.lines(taken, len(offered))}")
    if resources is None:
        goes_on = status.state is not State.FINISHED
        why = "the run goes on" if goes_on else "Puppet left none: it applied nothing"
        render.emit(f"\nno report of this run: {why}")
        return
    shorten = _shorten(node.settings.modules, node.settings.root)
    for fate, title, color in SECTIONS:
        found = [resource for resource in resources if resource.fate is fate]
        if found:
            render.emit(f"\n{click.style(title, fg=color, bold=True)} {len(found)}")
            render.emit(_section(found, limit, shorten))
    slow = slowest(resources, SLOWEST)
    if slow:
        render.emit(f"\n{click.style('Slowest', bold=True)}")
        render.emit("\n".join(_title(resource) for resource in slow))


def _read(run: RunDirectory) -> list[ReportedResource] | None:
    try:
        return resources_of(read_json(run.report))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise InvalidInputError(str(error), where=str(run.report)) from error


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


def _section(found: Sequence[ReportedResource], limit: int, shorten: Callable[[str], str]) -> str:
    lines = []
    for resource in found[:limit]:
        lines.append(_title(resource))
        if resource.file:
            line = f":{resource.line}" if resource.line else ""
            place = one_line(f"{shorten(resource.file)}{line}")
            lines.append("    " + click.style(place, dim=True))
        for event in resource.events:
            when = f"{parse_time(event.time):%H:%M:%S}" if event.time else ""
            name = f"{event.property}: " if event.property else ""
            first, *rest = render.user_text(f"{name}{event.message}").splitlines() or [""]
            lines.append(render.hanging(f"    {click.style(when, dim=True)} ", first))
            lines += [f"      {line}" for line in rest]
    if len(found) > limit:
        lines.append(f"  and {len(found) - limit} more; --limit or --json shows them")
    return "\n".join(lines)


def _title(resource: ReportedResource) -> str:
    """Return a resource's reference, and at the end of the line how long it took."""
    name = f"  {one_line(resource.ref)}"
    seconds = resource.seconds
    if seconds is None:
        return name
    took = f"{seconds * 1000:.0f}ms" if seconds < 1 else f"{seconds:.1f}s"
    room = (render.columns() or 80) - len(took) - 2
    if len(name) > room:
        name = f"{name[: room - 1]}…"
    return f"{name.ljust(room)}  {click.style(took, dim=True)}"


def _shorten(*directories: Path) -> Callable[[str], str]:
    def shorten(path: str) -> str:
        for directory in directories:
            if path.startswith(f"{directory}/"):
                return path.removeprefix(f"{directory}/")
        return path

    return shorten
