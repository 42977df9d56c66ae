"""`localpuppet history`, `logs`, `report`, `why`: the record of runs, for people and programs."""

import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.json_file import read_json
from localpuppet.base.formats.text import folded, one_line, printable
from localpuppet.base.formats.times import parse_time, show_duration
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render, render_run
from localpuppet.node.cli.command import (
    ANY,
    OPTION,
    command,
    flag,
    limit_option,
    only_here,
    selects_nodes,
)
from localpuppet.node.cli.node_setup import RunCommand, complete_run
from localpuppet.node.node_ports import NodeSelection
from localpuppet.node.puppet.command_line import in_release, with_places_in_release
from localpuppet.node.puppet.resources import (
    ReportedResource,
    ResourceResult,
    resources_of,
    slowest,
)
from localpuppet.node.runs.query_record import RecordedQuery, read_queries
from localpuppet.node.runs.run import RunState, Status
from localpuppet.node.runs.run_records import Records, RunDirectory

if TYPE_CHECKING:
    from localpuppet.node.runs.run import Attempt


SHOWN = 5


def lines(queries: Sequence[RecordedQuery]) -> str:
    """Return a paragraph with its heading, or empty text without queries."""
    if not queries:
        return ""
    shown = [click.style("Queries", dim=True)]
    for query in queries:
        shown.append(f"  {one_line(query.text)}")
        shown.append(render.hanging("    ", _answer(query)))
    return "\n".join(shown)


def _answer(query: RecordedQuery) -> str:
    if query.digest is None:
        return click.style(f"could not ask: {render.user_text(query.reason)}", fg="red")
    names = ", ".join(query.names[:SHOWN])
    more = f" and {len(query.names) - SHOWN} more" if len(query.names) > SHOWN else ""
    answer = f"{render.counted(len(query.names), 'node')}: {names}{more}" if names else "no node"
    age = "" if not query.age or query.age < 1 else f"; {show_duration(query.age)} old"
    return f"{answer} (revision {query.revision}{age})"


SECTIONS = (
    (ResourceResult.FAILED, "Failed", "red"),
    (ResourceResult.CHANGED, "Changed", "green"),
    (ResourceResult.WOULD_CHANGE, "Would change", "yellow"),
    (ResourceResult.SKIPPED, "Skipped", "cyan"),
)


def sections(
    resources: Sequence[ReportedResource],
    limit: int,
    shorten: Callable[[str], str] = lambda path: path,
    *,
    margin: int = 0,
) -> Iterator[str]:
    """Yield a paragraph with its heading for each result of resources.

    Args:
        limit: Maximum number of resources of a kind.
        margin: Blanks that the caller puts before each line.
    """
    for result, word, color in SECTIONS:
        selected = [resource for resource in resources if resource.result is result]
        if selected:
            heading = f"{click.style(word, fg=color, bold=True)} {len(selected)}"
            yield f"{heading}\n{_section(selected, limit, shorten, margin)}"


def _section(
    resources: Sequence[ReportedResource], limit: int, shorten: Callable[[str], str], margin: int
) -> str:
    lines = []
    for resource in resources[:limit]:
        lines.append(title(resource, margin=margin))
        if resource.file:
            line = f":{resource.line}" if resource.line else ""
            place = one_line(f"{shorten(in_release(resource.file))}{line}")
            lines.append("    " + click.style(place, dim=True))
        for event in resource.events:
            when = f"{parse_time(event.time):%H:%M:%S}" if event.time else ""
            name = f"{event.property}: " if event.property else ""
            first, *rest = printable(
                f"{name}{with_places_in_release(event.message)}"
            ).splitlines() or [""]
            lines.append(render.hanging(f"    {click.style(when, dim=True)} ", first, margin))
            lines += [f"      {line}" for line in rest]
    if len(resources) > limit:
        lines.append(f"  and {len(resources) - limit} more; --limit or --json shows them")
    return "\n".join(lines)


def title(resource: ReportedResource, *, margin: int = 0) -> str:
    """Return a resource's reference, with its duration at the end of the line."""
    name = f"  {one_line(resource.resource)}"
    seconds = resource.seconds
    if seconds is None:
        return name
    took = f"{seconds * 1000:.0f}ms" if seconds < 1 else f"{seconds:.1f}s"
    room = (render.columns() or 80) - margin - len(took) - 2
    if len(name) > room:
        name = f"{name[: room - 1]}…"
    return f"{name.ljust(room)}  {click.style(took, dim=True)}"


def shortener(*directories: Path) -> Callable[[str], str]:
    """Return a function that removes these directories from the start of a path."""

    def shorten(path: str) -> str:
        for directory in directories:
            if path.startswith(f"{directory}/"):
                return path.removeprefix(f"{directory}/")
        return path

    return shorten


RENAMED = {"-l": "-n"}
WIDE = 120
SLOWEST = 5
# Lines of Puppet's output that are shown without a report, and characters that are read for them.
FIRST_LINES = 20
MAX_OUTPUT = 65536


@command(
    "history",
    exits={1: "the history of a node is missing or rejected", 69: "the bus is unreachable"},
)
@limit_option("runs", default=20)
@selects_nodes(ANY)
@flag("--json as_json", "Print JSON, with every field of each run.")
@click.pass_obj
def history_command(node: NodeApp, limit: int, selection: NodeSelection, as_json: bool) -> int:
    """List the runs of this node, newest first.

    The list includes applies that localpuppet refused. Such a row has no id; it shows the reason.

    With NODE, list the runs that other nodes have published on the bus in the last eight days.
    No node is asked, so that the list also has the runs of an unresponsive node.

    Examples:
      localpuppet history -n 5
      localpuppet history web01.example.com
      localpuppet history --json | jq '.runs[] | select(.noop | not)'
    """
    if selection:
        return node.additions.history(selection, limit=limit, as_json=as_json)
    records, refused = node.records, node.attempts
    runs = list(islice(records.history(), limit))
    attempts = list(islice(refused.history(), limit))
    if as_json:
        render.emit_json(
            {
                "schema": 1,
                "runs": [status.to_dict() for status in runs],
                "attempts": [attempt.to_dict() for attempt in attempts],
            }
        )
        return 0
    if not runs and not attempts:
        render.emit("no run yet; 'localpuppet apply' starts one")
        return 0
    rows = [(status.started_at, _row(status)) for status in runs]
    rows += [(attempt.at, _attempt_row(attempt)) for attempt in attempts]
    rows.sort(key=lambda row: row[0], reverse=True)
    shown = [row for _, row in rows[:limit]]
    render.emit(_table(shown))
    total = len(records.ids())
    listed = sum(1 for row in shown if row[0])
    if total > listed:
        render.emit(f"{listed} of {total} runs; --limit shows more")
    if runs and (command := render_run.next_command(runs[0])):
        render.emit(f"the newest run failed: {command}")
    return 0


def _row(status: Status) -> tuple[str, ...]:
    details = render_run.reason(status) or render_run.counts(status)
    return (
        status.id,
        render_run.moment(status.started_at).removesuffix(" UTC"),
        render_run.took(status),
        render.word(render_run.state_word(status), noop=status.noop),
        render.user_text(status.release),
        "; ".join(
            filter(
                None, ["repaired" * bool(status.repaired), render_run.show_part(status), details]
            )
        ),
    )


def _attempt_row(attempt: "Attempt") -> tuple[str, ...]:
    times = f"{attempt.times} times: " if attempt.times > 1 else ""
    return (
        "",
        render_run.moment(attempt.at).removesuffix(" UTC"),
        "",
        render.word("refused", noop=attempt.noop),
        render.user_text(attempt.release),
        times + render.user_text(attempt.reason),
    )


def _table(rows: Sequence[Sequence[str]]) -> str:
    width = render.columns()
    if width is not None and width < WIDE:
        # The end of an id means the run, too; what is left over is for the reason.
        rows = [[row[0].rpartition("-")[2], row[1][5:16], *row[2:]] for row in rows]
    return render.table(render_run.HISTORY, rows, width=width, spare=("TOOK",))


@command("logs", RunCommand, exits={1: "a node refused to answer", 69: "a node did not answer"})
@click.argument("run", required=False, shell_complete=complete_run)
@flag("-f --follow", "Follow the log until the run has finished.")
@limit_option("lines, the last ones")
@selects_nodes(OPTION)
@flag("--json as_json", "Print JSON: the run's id and its lines.")
@click.pass_obj
def logs_command(
    node: NodeApp,
    run: str | None,
    follow: bool,
    limit: int | None,
    selection: NodeSelection,
    as_json: bool,
) -> int:
    """Show Puppet's output of a run.

    RUN is the beginning or end of an id, or -1 for the run before the newest. Repeated lines are
    shown once with their number; --json has every line.

    With --node, show the end of the log on other nodes, without the contents of files. Their
    policies must allow you `log`, and RUN must be a whole id.

    Examples:
      localpuppet logs                   of the newest run
      localpuppet logs -f                until the run has finished
      localpuppet logs 7f3a              of a run by the end of its id
      localpuppet logs -1 -n 20          the last lines of the run before the newest
      localpuppet logs --node web01.example.com
    """
    only_here(selection, __follow=follow)
    if selection:
        return node.additions.ask(selection, "log", as_json=as_json, limit=limit, run=run)
    records = node.records
    directory = records.get(run)
    if as_json and follow:
        raise InvalidInputError("--json and --follow exclude each other")
    if as_json:
        lines = _read(directory).splitlines()[-(limit or 0) :]
        render.emit_json({"schema": 1, "id": directory.id, "lines": lines})
        return 0
    follow_log(
        records,
        directory,
        show=lambda text: render.emit(render.puppet_line(text)),
        sleep=node.processes.sleep if follow else None,
        limit=limit,
    )
    return 0


def _read(run: RunDirectory) -> str:
    try:
        return run.log.read_text("utf-8", "backslashreplace")
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise InvalidInputError(
            f"cannot be read: {error.strerror}", where=str(run.log), hint="run as root"
        ) from error


def follow_log(
    records: Records,
    run: RunDirectory,
    *,
    show: Callable[[str], None],
    sleep: Callable[[float], None] | None,
    limit: int | None = None,
) -> None:
    """Show the last `limit` lines of a run's log; with `sleep`, follow it until the run ends."""
    position = 0
    rest = ""
    while True:
        status = records.status(run)
        finished = status.state is RunState.FINISHED and not records.orphaned(status)
        text = _read(run)
        *lines, rest = (rest + text[position:]).split("\n")
        position = len(text)
        for line in [*folded(lines)][-(limit or 0) :]:
            show(render.user_text(line))
        limit = None
        sys.stdout.flush()
        if finished or sleep is None:
            break
        sleep(0.1)
    if rest:
        show(render.user_text(rest))


@command("why", RunCommand, exits={1: ""})
@click.argument("run", required=False, shell_complete=complete_run)
@flag("--full", "Show Puppet's whole command and its paths, too.")
@flag("--json as_json", "Print JSON: request.json, status, queries, exports, kicks.")
@click.pass_obj
def why_command(node: NodeApp, run: str | None, full: bool, as_json: bool) -> None:
    """Show what caused a run, and what it was based on.

    For another node, see 'localpuppet history NODE' and 'localpuppet report --node NODE'.

    RUN is the beginning or end of an id, or -1 for the run before the newest. The output has the
    cause, the user, the input, the release, its layers, and the classes and parameters.

    If the run asked about other nodes, the output has the queries and their answers, and the
    exported and collected resources. It also has the nodes that the run triggered with 'kick'
    resources. If the run is a reaction (the answer to a query changed), the output names the node
    that changed.

    Examples:
      localpuppet why                    of the newest run
      localpuppet why -1 --full          of the run before it, with the command
      localpuppet why --json | jq .request.node_document
    """
    records = node.records
    directory = records.get(run)
    status = records.status(directory)
    try:
        request = directory.read_request()
    except FileNotFoundError:
        request = {}
    asked = read_queries(directory)
    addition = node.additions.why(directory, request)
    if as_json:
        shown = {"request": request, "status": status.to_dict()}
        render.emit_json(
            {
                "schema": 1,
                **shown,
                "queries": [query.to_dict() for query in asked],
                **addition.fields,
            }
        )
        return
    render.emit(_why(status, request, addition.rows, full=full))
    for text in addition.paragraphs:
        render.emit(text)
    if asked:
        render.emit(lines(asked))
    document = request.get("node_document")
    for heading, key in (("Classes", "classes"), ("Parameters", "parameters")):
        part = document.get(key) if isinstance(document, dict) else None
        if isinstance(part, dict) and part:
            render.emit(f"{click.style(heading, dim=True)}\n{render.mapping_lines(part, '  ')}")


def _why(
    status: Status,
    request: dict[str, object],
    more: Sequence[tuple[str, str]],
    *,
    full: bool,
) -> str:
    def field_text(key: str) -> str:
        value = request.get(key)
        if isinstance(value, list):
            return ", ".join(map(render.user_text, value))
        return render.user_text(value) if value not in (None, "") else ""

    digest = field_text("input_sha256")
    command: Any = request.get("command") or ()
    rows = [
        ("Cause", field_text("cause")),
        ("User", field_text("user")),
        ("Run", status.id),
        ("State", render.word(render_run.state_word(status))),
        ("Reason", render_run.reason(status)),
        ("Asked", render_run.moment(str(request.get("requested_at") or "")) if request else ""),
        ("Input", field_text("input") + (f" (sha256 {digest[:16]}…)" if digest else "")),
        ("Assigned", _assigned(request.get("assignment"))),
        *more,
        render_run.code(status),
        ("Layers", field_text("layers")),
        ("Modulepath", field_text("modulepath") if full else ""),
        ("Environment", field_text("environment")),
        ("Instance facts", field_text("instance_facts")),
        ("Noop", "yes" if request.get("noop") else ""),
        ("Command", render.user_text(shlex.join(map(str, command))) if full else ""),
    ]
    return render.pairs(rows)


def _assigned(raw: object) -> str:
    """Return who assigned the release, or empty."""
    if not isinstance(raw, dict) or not raw:
        return ""
    rollout = f", rollout {raw.get('rollout')}" if raw.get("rollout") else ""
    at = render_run.moment(str(raw.get("at") or ""))
    return render.user_text(f"by {raw.get('by')} at {at}{rollout} (serial {raw.get('serial')})")


@command(
    "report",
    RunCommand,
    renamed=RENAMED,
    exits={
        0: "the report is shown, whatever the result of the run",
        1: "the run has no report; a node refused to answer",
        69: "a node did not answer",
    },
)
@click.argument("run", required=False, shell_complete=complete_run)
@limit_option("resources of a kind", default=20)
@selects_nodes(OPTION)
@flag("--json as_json", "Print JSON, with every resource.")
@click.pass_obj
def report_command(
    node: NodeApp, run: str | None, limit: int, selection: NodeSelection, as_json: bool
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
    if selection:
        return node.additions.ask(selection, "report", as_json=as_json, limit=limit, run=run)
    records = node.records
    directory = records.get(run)
    status = records.status(directory)
    resources = _read_results(directory)
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
        render.emit(f"\n{lines(asked)}")
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


def _read_results(run: RunDirectory) -> list[ReportedResource] | None:
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
        ("Reason", render_run.reason(status)),
    ]
