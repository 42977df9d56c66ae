"""`localpuppet rollout run`, `resume` and `plan`: carry a rollout out, or show what it would do."""

import itertools
import secrets
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

import click

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName, ReleasePath, RolloutId, split_tags
from localpuppet.base.formats.times import parse_duration
from localpuppet.fleet.app import FleetApp, run
from localpuppet.fleet.cli.requests import chosen, read_values, shown
from localpuppet.fleet.requests.request_client import CatalogComparison, by_change, compare_on
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import command, flag, option, options, path_type
from localpuppet.node.cli.node_setup import complete_release
from localpuppet.node.node_ports import NodeSelection
from localpuppet.node.puppet.changes import SALT_DIGITS
from localpuppet.node.releases.comparison import CatalogChanges
from localpuppet.rollout import deciding, rollout_options
from localpuppet.rollout.app import RolloutApp
from localpuppet.rollout.cli import order
from localpuppet.rollout.cli.rollout import operator_option, parse_names
from localpuppet.rollout.cli.rollout_text import ASKING, RolloutProgress, outcome
from localpuppet.rollout.deciding import RolloutSelection
from localpuppet.rollout.events import RolloutBegan
from localpuppet.rollout.journal import JournalReader
from localpuppet.rollout.site import MAX_CHECKS, Check, parse_text
from localpuppet.rollout.state import RolloutState

RENAMED = {"--nodes": "NODE"}
RENAMED_OF_PLAN = {**RENAMED, "--catalogs": "implied by --release"}
# The options that --failed-in takes from the earlier rollout.
_TAKEN = (
    "canary",
    "batch",
    "window",
    "max_failures",
    "noop",
    "tags",
    "skip_unready",
    "checks",
    "on_failure",
    "pause",
    "pause_at_most",
    "investigate",
    "one_at_a_time_by",
    "release",
    "values",
    "allow_older",
)
_RELEASE = options(
    "Release",
    option(
        "--release RELEASE",
        "Give this release (SOURCE/tags/TAG) to the nodes, and run it.",
        shell_complete=complete_release,
    ),
    option(
        "--values FILE",
        "Layers and class parameters for the release: see 'localpuppet assign --help'.",
        type=path_type(),
    ),
    flag("--allow-older", "Accept a release that is older than the nodes'."),
)
_PACE = options(
    "Order and speed",
    option("--canary N", "Run N nodes of each group first.", type=click.IntRange(min=1)),
    option("--batch N|N%", "Run N nodes of a group together, then the next N."),
    option(
        "--window N",
        "Run at most N nodes of a group at a time; start the next when one ends.",
        type=click.IntRange(min=1),
    ),
    option(
        "--one-at-a-time-by FACT",
        "Do not run nodes with different values of this fact (such as a zone) together.",
    ),
    option(
        "--until WHEN",
        "Start no run that would end after WHEN, by the length of the node's last good runs: "
        "'06:00 Europe/Berlin', 2026-11-22T06:00+01:00.",
    ),
)
_FAILURES = options(
    "Failures and pauses",
    option(
        "--check checks URL|COMMAND",
        "Check this after each node's run; '%{node}' is its name (repeatable).",
        multiple=True,
    ),
    option("--max-failures N|N%", "Allow N nodes to fail.  [default: 0]"),
    option(
        "--on-failure",
        "If more nodes fail: stop; pause until you decide; or stop, and roll the release "
        "back.  [default: stop]",
        type=click.Choice(["stop", "pause", "rollback"]),
    ),
    option(
        "--pause",
        "Pause after each group's canaries, or before each group but the first (repeatable).",
        multiple=True,
        type=click.Choice(["canaries", "groups"]),
    ),
    option("--pause-at-most TIME", "Stop the rollout after a pause of TIME.  [default: 1h]"),
    option("--investigate TIME", "Keep failed nodes on hold for TIME after the end, up to 1d."),
    option("--wait-timeout TIME", "Wait at most TIME for the result of each run.  [default: 1h]"),
    flag("--skip-unready", "Leave out nodes that are not ready, instead of running no node."),
)
_PUPPET = options(
    "Puppet runs",
    flag("--noop", "Change nothing; show what would change, and its digest."),
    option(
        "--approve DIGEST", "Allow only changes that the rollout with --noop of this digest showed."
    ),
    option("--tags TAGS", "Apply only resources with one of these tags (a,b)."),
)
_JSON = flag("--json as_json", "Print the report as JSON.")
EXITS = {
    0: "every node succeeded",
    1: "a node did not succeed",
    2: "an option or the site is invalid, or no node is selected",
    69: "the bus is unreachable",
    75: "another process controls the rollout, here or on another machine",
    130: "",
}


def selected(node: NodeApp, given: dict[str, Any], *, acts: bool) -> RolloutSelection:
    words: NodeSelection = given["selection"]
    if given["order"] == "none":
        selection = _one_group(node, given, words, acts=acts)
    else:
        selection = deciding.of_plan(order.read_plan(node, given, acts=acts))
    if given["source"] is None and not words.nodes and words.failed_in is None:
        order.refuse_unlisted(node, {*itertools.chain(*selection.groups)}, words.without)
    return selection


def _one_group(
    node: NodeApp, given: dict[str, Any], words: NodeSelection, *, acts: bool
) -> RolloutSelection:
    if given["source"] is not None or given["instances"]:
        raise click.UsageError("--order none excludes --site and --instance")
    if not words:
        raise click.UsageError("--order none requires NODE, --query or --role")
    query, roles = words.query, words.roles
    title = f"query {query}" if query else f"role {', '.join(roles)}" if roles else ""
    names = chosen(node, words, acts=acts and bool(words.nodes))
    first = min(names, default="")
    others = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return deciding.one_group(names, title=title or f"{first}{others}")


def how_options(command: Any) -> Any:  # noqa: ANN401
    """Add the options for how a rollout runs to a command."""
    return _RELEASE(_PACE(_FAILURES(_PUPPET(command))))


def _new_options(node: NodeApp, given: dict[str, Any]) -> rollout_options.RolloutOptions:
    batch, failures, on_failure = given["batch"], given["max_failures"], given["on_failure"]
    return rollout_options.RolloutOptions(
        canary=given["canary"] or 0,
        batch=None if batch is None else rollout_options.Amount.parse(batch, what="--batch"),
        window=given["window"],
        max_failures=rollout_options.NONE
        if failures is None
        else rollout_options.Amount.parse(failures, what="--max-failures", minimum=0),
        noop=given["noop"],
        tags=split_tags(given["tags"]),
        timeout=_seconds(given, "wait_timeout") or rollout_options.TIMEOUT,
        skip_unready=given["skip_unready"],
        checks=_checks(given["checks"]),
        on_failure=rollout_options.OnFailure(on_failure or rollout_options.OnFailure.STOP),
        pause=tuple(map(rollout_options.PauseAfter, dict.fromkeys(given["pause"]))),
        pause_at_most=_seconds(given, "pause_at_most") or rollout_options.PAUSE_AT_MOST,
        investigate=_seconds(given, "investigate"),
        one_at_a_time_by=given["one_at_a_time_by"],
        until=_until(node, given),
        delivery=_delivery(node, given),
    )


def _until(node: NodeApp, given: dict[str, Any]) -> datetime | None:
    text = given["until"]
    return (
        None
        if text is None
        else rollout_options.parse_until(text, now=node.clock.now(), where="--until")
    )


def _delivery(node: NodeApp, given: dict[str, Any]) -> rollout_options.Delivery | None:
    if given["release"] is None:
        if given["values"] is not None or given["allow_older"]:
            raise click.UsageError("--values and --allow-older require --release")
        return None
    layers, classes = read_values(node, given["values"])
    release = ReleasePath.parse(given["release"], where="--release")
    return rollout_options.Delivery(
        release=release, layers=layers, classes=classes, allow_older=given["allow_older"]
    )


def _seconds(given: dict[str, Any], name: str) -> float | None:
    text = given[name]
    return None if text is None else parse_duration(text, where=f"--{name.replace('_', '-')}")


def _checks(texts: tuple[str, ...]) -> tuple[Check, ...]:
    if len(texts) > MAX_CHECKS:
        raise InvalidInputError(f"at most {MAX_CHECKS} are allowed", where="--check")
    return tuple(parse_text(text, where="--check") for text in texts)


def _options_of_parent(
    node: NodeApp, app: RolloutApp, given: dict[str, Any]
) -> tuple[rollout_options.RolloutOptions, RolloutState]:
    """Return the options and the state of the `--failed-in` rollout."""
    if any(given[name] for name in _TAKEN):
        raise click.UsageError("--failed-in takes the options of the earlier rollout")
    state, _ = app.failed_in(RolloutId.parse(given["selection"].failed_in))
    earlier = state.began.options
    timeout = _seconds(given, "wait_timeout") or earlier.timeout
    again_options = replace(earlier, until=_until(node, given), timeout=timeout)
    return again_options, state


@command("run", exits=EXITS, renamed=RENAMED)
@order.site_options
@how_options
@_JSON
@click.pass_obj
def run_command(node: NodeApp, /, as_json: bool, **given: Any) -> int:  # noqa: ANN401
    """Run Puppet on many nodes, in the order of a plan.

    The plan is that of 'rollout plan' with the same options. With --failed-in, the rollout has the
    options of rollout ID. The rollout asks all nodes whether
    they are ready, puts them on hold, so that nothing else runs them, and then runs one group after
    the other. A node that does not report its result has failed. With --release, all nodes fetch
    and verify the release before one changes.

    On ^C, no further nodes start, active runs finish, and all nodes are released. On a second ^C,
    the command does not wait for active runs.

    Each node's policy must allow you `status`, `disable`, `enable` and `runonce`, and
    `deploy:RELEASE` for --release.

    Examples:
      localpuppet rollout run
      localpuppet rollout run --role web --window 5
      localpuppet rollout run --site site.yaml --batch 25% --max-failures 2
      localpuppet rollout run --site site.yaml --check 'http://%{node}/health'
      localpuppet rollout run --site site.yaml --noop
      localpuppet rollout run --site site.yaml --approve 4f1c09a7d2e8
      localpuppet rollout run --site site.yaml --release shop/tags/r7
      localpuppet rollout run --query role=web --order none --window 5
      localpuppet rollout run --failed-in 20261122T110000Z-0a1b --site site.yaml
    """
    app = RolloutApp(node)
    parent = None
    if given["selection"].failed_in is None:
        options = _new_options(node, given)
    else:
        options, parent = _options_of_parent(node, app, given)
    with order.without_collector():
        selection = selected(node, given, acts=True)
    groups, fact, digest = selection.groups, options.one_at_a_time_by, given["approve"]
    approval, salt = None, secrets.token_hex(SALT_DIGITS // 2) if options.noop else ""
    if digest is not None:
        approval, approved = deciding.find(app.journals.states(), digest)
        deciding.refuse_other(approved, groups, options)
    elif parent is not None:
        approval = parent.began.approval  # the approved changes are one of its options
    members = {name for group in groups for name in group}
    began = RolloutBegan(
        id=app.new_id(),
        caller=app.caller,
        groups=groups,
        options=options,
        title=selection.title,
        # Needed only to leave nodes out, and large.
        consumers=deciding.consumers_of(selection.needs) if options.skip_unready else {},
        parent=None if parent is None else parent.began.id,
        salt=salt if approval is None else approval.salt,
        approval=approval,
        checks=selection.checks,
        needs=selection.needs,
        places={} if fact is None else deciding.places_of(order.fact_of(node, fact, members), fact),
    )
    if parent is not None and parent.over and parent.over.held_for_investigation:
        run(app.release(parent.began.id))  # its failed nodes run again
    return _carry_out(lambda progress: app.begin(began, progress.take), as_json=as_json)


@command("resume", exits=EXITS)
@click.argument("rollout", required=False, metavar="[ID]")
@operator_option
@flag("--run-checks", "With --operator: run the check commands of that rollout as you.")
@_JSON
@click.pass_obj
def resume_command(
    node: NodeApp, rollout: str | None, operator: str | None, run_checks: bool, as_json: bool
) -> int:
    """Continue a paused, stopped or interrupted rollout.

    ID is the rollout; the default is the newest that can be resumed. If its controller waits in a
    pause, the controller continues, and accepts the failures so far; the alternatives are 'rollout
    stop' and 'rollout rollback'. If no process controls the rollout, this one takes it over, and
    says so first. It keeps its options. A node whose run was started does not run again: the
    command asks it for the result.

    With your key, this also works on another machine, because the bus has a checkpoint of the
    rollout. A process that still controls the rollout elsewhere ends if it does not wait in a
    pause. With --operator, you take over the rollout of another person; the policies of its nodes
    must allow you `takeover`.

    Examples:
      localpuppet rollout resume
      localpuppet rollout resume 20261122T110000Z-0a1b
      localpuppet rollout resume 20261122T110000Z-0a1b --operator alice
    """
    wanted, owner = parse_names(rollout, operator)
    app = RolloutApp(node)

    async def continue_paused() -> bool:
        async with shown(render.observer(quiet=as_json, title="asking the controller")):
            return await app.continue_paused(wanted, owner)

    if run(continue_paused()):
        if as_json:
            render.emit_json({"schema": 1, "continued": True})
        else:
            render.emit("continued")
        return 0
    return _carry_out(
        lambda progress: app.resume(
            wanted, progress.take, replay=progress.replay, owner=owner, commands=run_checks
        ),
        as_json=as_json,
    )


def _carry_out(
    work: Callable[[RolloutProgress], Awaitable[JournalReader]], *, as_json: bool
) -> int:
    """Show the progress of a rollout and its result; return the exit code."""

    async def carry_out() -> int:
        observer = render.observer(quiet=as_json, title=ASKING)
        async with shown(observer):
            journal = await work(RolloutProgress(observer, time.monotonic))
        report = journal.report()
        journal.close()
        if as_json:
            render.emit_json(report.to_dict())
        else:
            render.emit(outcome(report))
        over = report.state.over
        if over is not None and over.reason == f"stopped by {signal.SIGINT.name}":
            return 130
        return 0 if report.succeeded else 1

    return run(carry_out())


PATIENCE = "30m"

SHOWN = 20  # resources of nodes with the same changes


def lines(comparisons: Mapping[NodeName, CatalogComparison]) -> Iterator[str]:
    """Yield the counts of each node, then the resources, with nodes of equal changes together."""
    rows = [
        (
            node,
            *(str(len(part)) for part in (predicted.added, predicted.removed, predicted.changed)),
        )
        for node, answer in comparisons.items()
        if (predicted := answer.changes) is not None
    ]
    if rows:
        yield render.table(("NODE", "ADDED", "REMOVED", "CHANGED"), rows)
    for changes, nodes in by_change(comparisons):
        yield ""
        yield render.hanging("", click.style(", ".join(nodes), bold=True))
        yield from _resources(changes)
    for node, comparison in comparisons.items():
        if comparison.problem:
            yield render.hanging("", f"{node}: not known: {render.user_text(comparison.problem)}")


def _resources(changes: CatalogChanges) -> Iterator[str]:
    rows = [_line("-", name, "red") for name in changes.removed]
    rows += [
        f"{_line('~', name, 'yellow')}: {', '.join(map(render.user_text, inner))}"
        for name, inner in changes.changed.items()
    ]
    rows += [_line("+", name, "green") for name in changes.added]
    for row in rows[:SHOWN]:
        yield render.hanging("  ", row)
    if changes.count > len(rows[:SHOWN]):
        yield f"  and {changes.count - len(rows[:SHOWN])} more; --json has all"
    if not changes.count:
        yield "  nothing changes"


def _line(sign: str, name: str, color: str) -> str:
    return f"{click.style(sign, fg=color)} {render.user_text(name)}"


@command(
    "plan",
    exits={
        0: "success; with --release, every node reported",
        1: "with --release: a node failed or did not report",
        2: "the site is invalid or has no order, or no node is selected",
        69: "the inventory or the bus is unreachable, or Graphviz is missing",
    },
    renamed=RENAMED_OF_PLAN,
)
@order.site_options
@options(
    "Comparison",
    option(
        "--release RELEASE",
        "Compile two catalogs on each node, with its own release and with this one; show the "
        "difference.",
        shell_complete=complete_release,
    ),
    option(
        "--wait-timeout TIME",
        "Wait at most TIME for a node, which may have to fetch the release.",
        default=PATIENCE,
        show_default=True,
    ),
)
@option("--json form", "Print JSON.", flag_value="json")
@option("--svg form", "Print a picture (requires Graphviz).", flag_value="svg")
@option("--dot form", "Print DOT text for Graphviz.", flag_value="dot")
@option("--text form", "Print the format of 'mco choria plan', as in a pipe.", flag_value="text")
@click.pass_obj
def plan_command(node: NodeApp, /, form: str | None, **given: Any) -> int:  # noqa: ANN401
    """Show the order of nodes, or what a release would change.

    The plan has groups; the nodes of a group can run at the same time. A node that consumes
    something is in a later group than all nodes that produce it. The command runs nothing.

    With NODE or a selection, the plan has these nodes; what others produce counts as done.

    Without --site, the order comes from the inventory: from the components that catalogs declare,
    and from what nodes collect from, query about and kick each other.

    With --release, each node compiles two catalogs from its own input and facts, and reports which
    resources differ: their types, titles and parameter names, never values. The command applies
    nothing. Each node's policy must allow you `compile`.

    A site file:
      applications:
        shop:
          database: {node: db01.example.com, produces: [sql/shop]}
          web: {node: web01.example.com, consumes: [sql/shop]}

    Examples:
      localpuppet rollout plan
      localpuppet rollout plan --role web --role haproxy
      localpuppet rollout plan --site site.yaml
      localpuppet rollout plan --site environment.json --instance 'Lamp[app1]'
      localpuppet rollout plan --site site.yaml --svg > plan.svg
      localpuppet rollout plan --site site.yaml --json | jq '.groups[].runs'
      localpuppet rollout plan --release shop/tags/r7 --role web
    """
    release = given["release"]
    if release is None:
        if given["order"] != "site":
            raise click.UsageError(f"--order {given['order']} requires --release")
        with order.without_collector():
            order.show(order.read_plan(node, given), form)
        return 0
    if form not in (None, "json"):
        raise click.UsageError(f"--{form} excludes --release")
    with order.without_collector():
        selection = selected(node, given, acts=False)
    nodes = sorted({name for group in selection.groups for name in group})
    seconds = parse_duration(given["wait_timeout"], where="--wait-timeout")
    comparisons = _asked(node, nodes, ReleasePath.parse(release, where="--release"), seconds)
    if form == "json":
        rows = [{"node": name, **_to_dict(answer)} for name, answer in comparisons.items()]
        render.emit_json({"schema": 1, "release": release, "nodes": rows})
    else:
        render.emit("\n".join(lines(comparisons)))
    return 1 if any(answer.problem for answer in comparisons.values()) else 0


def _asked(
    node: NodeApp, nodes: list[NodeName], release: ReleasePath, seconds: float
) -> dict[NodeName, CatalogComparison]:
    fleet = FleetApp(node)

    async def ask() -> dict[NodeName, CatalogComparison]:
        observer = render.observer(quiet=False, title=f"{len(nodes)} nodes compile")
        async with shown(observer), fleet.connected() as kv:
            client = fleet.requests(kv)
            async with client.together():
                return await compare_on(client, nodes, release, patience=seconds)

    return run(ask())


def _to_dict(answer: CatalogComparison) -> dict[str, Any]:
    changes = None if answer.changes is None else answer.changes.to_dict()
    return {"ok": changes is not None, "error": answer.problem, **(changes or {})}
