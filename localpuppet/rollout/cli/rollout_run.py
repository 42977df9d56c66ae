"""`localpuppet rollout run` and `resume`: carry a rollout out to its end."""

import itertools
import secrets
import time
from contextlib import closing
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName, ReleasePath, RolloutId, SignerName, split_tags
from localpuppet.base.formats.times import parse_duration
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import command, flag, option, options
from localpuppet.node.cli.completion import complete_release
from localpuppet.rollout.cli.inventory_site import answer, fact_of, refuse_unlisted, with_roles
from localpuppet.rollout.cli.rollout_continue import operator_option
from localpuppet.rollout.cli.site_options import (
    SITE,
    names_in,
    read_plan,
    site_options,
    without_collector,
)

if TYPE_CHECKING:
    from localpuppet.rollout.deciding import Groups, RolloutSelection
    from localpuppet.rollout.events import RolloutBegan
    from localpuppet.rollout.journal import JournalReader
    from localpuppet.rollout.rollout_options import Approval, Delivery, RolloutOptions
    from localpuppet.rollout.site import Check
    from localpuppet.rollout.wiring.rollout import FleetRollouts, RolloutController


_ORDER = options(
    SITE,
    option(
        "--order",
        "none: all selected nodes are one group; requires --query, --role or --nodes.",
        type=click.Choice(["site", "none"]),
        default="site",
        show_default=True,
    ),
    option("--without NODE,…", "Leave out these nodes (repeatable).", multiple=True),
)
earlier_options = options(
    "Earlier rollout",
    option(
        "--approve DIGEST", "Allow only changes that the rollout with --noop of this digest showed."
    ),
    option(
        "--failed-in parent ID",
        "Run only nodes that did not succeed in rollout ID, with its options.",
    ),
)
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
        type=click.Path(path_type=Path),
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
    option("--tags TAGS", "Apply only resources with one of these tags (a,b)."),
)
_JSON = flag("--json as_json", "Print the report as JSON.")
EXITS = {
    0: "every node succeeded",
    1: "a node did not succeed",
    2: "an option or the site is invalid, or no node is selected",
    69: "the bus is unreachable",
    75: "another process controls the rollout, here or on another machine",
    130: "^C before the rollout began",
}


def what_options(command: Any) -> Any:  # noqa: ANN401
    """Add the options that select nodes to a command."""
    return site_options(_ORDER(command))


def selected(
    node: NodeApp, given: dict[str, Any], again: frozenset[NodeName] | None
) -> "RolloutSelection":
    """Return the selection of the options.

    Raises:
        InvalidInputError: The site is rejected, or the selection matches no node.
    """
    from localpuppet.rollout import deciding

    if given["order"] == "none":
        selection = _one_group(node, given, again)
    else:
        selection = deciding.of_plan(read_plan(node, given))
        selection = selection if again is None else deciding.only(selection, again)
    without, nodes = names_in(given["without"]), {*itertools.chain(*selection.groups)}
    if given["source"] is None and not given["nodes"] and again is None:
        refuse_unlisted(node, nodes, without)
    return deciding.only(selection, nodes - {*without}) if without else selection


def places(node: NodeApp, fact: str | None, groups: "Groups") -> "dict[NodeName, str]":
    """Return the places of nodes from a fact; empty if no fact is named.

    Raises:
        InvalidInputError: A node does not have the fact.
    """
    from localpuppet.rollout.deciding import places_of

    if fact is None:
        return {}
    return places_of(fact_of(node, fact, {name for group in groups for name in group}), fact)


def _one_group(
    node: NodeApp, given: dict[str, Any], again: frozenset[NodeName] | None
) -> "RolloutSelection":
    from localpuppet.rollout.deciding import one_group

    query, roles, nodes = given["query"], given["roles"], given["nodes"]
    if given["source"] is not None or given["instances"]:
        raise click.UsageError("--order none excludes --site and --instance")
    if query is None and not roles and not nodes and again is None:
        raise click.UsageError("--order none requires --query, --role or --nodes")
    groups = [] if again is None else [again]
    if query is not None:
        groups.append(answer(node, query))
    if roles:
        groups.append(with_roles(node, roles))
    if nodes:
        groups.append(frozenset(names_in(nodes)))
    title = f"query {query}" if query else f"role {', '.join(roles)}" if roles else ""
    names = frozenset.intersection(*groups)
    first = min(names, default="")
    others = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return one_group(names, title=title or f"{first}{others}")


def how_options(command: Any) -> Any:  # noqa: ANN401
    """Add the options for how a rollout runs to a command."""
    return _RELEASE(_PACE(_FAILURES(_PUPPET(command))))


def new_options(node: NodeApp, given: dict[str, Any]) -> "RolloutOptions":
    """Return the options of a new rollout.

    Raises:
        InvalidInputError: An option is invalid, or contradicts another.
    """
    from localpuppet.rollout.rollout_options import (
        NONE,
        PAUSE_AT_MOST,
        TIMEOUT,
        Amount,
        OnFailure,
        PauseAfter,
        RolloutOptions,
    )

    batch, failures, on_failure = given["batch"], given["max_failures"], given["on_failure"]
    return RolloutOptions(
        canary=given["canary"] or 0,
        batch=None if batch is None else Amount.parse(batch, what="--batch"),
        window=given["window"],
        max_failures=NONE
        if failures is None
        else Amount.parse(failures, what="--max-failures", minimum=0),
        noop=given["noop"],
        tags=split_tags(given["tags"]),
        timeout=_seconds(given, "wait_timeout") or TIMEOUT,
        skip_unready=given["skip_unready"],
        checks=_checks(given["checks"]),
        on_failure=OnFailure(on_failure or OnFailure.STOP),
        pause=tuple(map(PauseAfter, dict.fromkeys(given["pause"]))),
        pause_at_most=_seconds(given, "pause_at_most") or PAUSE_AT_MOST,
        investigate=_seconds(given, "investigate"),
        one_at_a_time_by=given["one_at_a_time_by"],
        until=_until(node, given["until"]),
        delivery=_delivery(node, given),
    )


def _until(node: NodeApp, text: str | None) -> "datetime | None":
    from localpuppet.rollout.rollout_options import parse_until

    return None if text is None else parse_until(text, now=node.clock.now(), where="--until")


def _delivery(node: NodeApp, given: dict[str, Any]) -> "Delivery | None":
    from localpuppet.rollout.rollout_options import Delivery

    if given["release"] is None:
        if given["values"] is not None or given["allow_older"]:
            raise click.UsageError("--values and --allow-older require --release")
        return None
    from localpuppet.fleet.cli.assign import read_values

    layers, classes = read_values(node, given["values"])
    release = ReleasePath.parse(given["release"], where="--release")
    return Delivery(
        release=release, layers=layers, classes=classes, allow_older=given["allow_older"]
    )


def _seconds(given: dict[str, Any], name: str) -> float | None:
    text = given[name]
    return None if text is None else parse_duration(text, what=f"--{name.replace('_', '-')}")


def _checks(texts: tuple[str, ...]) -> "tuple[Check, ...]":
    from localpuppet.rollout.site import MAX_CHECKS, parse_text

    if len(texts) > MAX_CHECKS:
        raise InvalidInputError(f"at most {MAX_CHECKS} are allowed", where="--check")
    return tuple(parse_text(text, where="--check") for text in texts)


def options_of_parent(
    node: NodeApp, rollouts: "FleetRollouts", given: dict[str, Any]
) -> "tuple[RolloutOptions, RolloutBegan, frozenset[NodeName]]":
    """Return the options and first event of the `--failed-in` rollout, and the nodes to repeat.

    Raises:
        InvalidInputError: It is not over, or all of its nodes succeeded.
    """
    from localpuppet.rollout.events import REPEATED
    from localpuppet.rollout.rollout_report import RolloutReport

    if any(given[name] for name in _TAKEN):
        raise click.UsageError("--failed-in takes the options of the earlier rollout")
    parent = RolloutId.parse(given["parent"])
    journal = rollouts.journals.open(parent)
    report = RolloutReport.of(journal.events(), taken=journal.taken)
    journal.close()
    if report.state.over is None:
        raise InvalidInputError(
            f"is not over: {report.word}", where=str(parent), hint="resume it, or stop it"
        )
    results = report.state.results()
    nodes = frozenset(node for node, result in results.items() if result in REPEATED)
    if not nodes:
        raise InvalidInputError("no node failed: nothing to repeat", where=str(parent))
    earlier = report.state.began.options
    timeout = _seconds(given, "wait_timeout") or earlier.timeout
    again_options = replace(earlier, until=_until(node, given["until"]), timeout=timeout)
    return again_options, report.state.began, nodes


@command("run", exits=EXITS)
@what_options
@earlier_options
@how_options
@_JSON
@click.pass_obj
def run_command(node: NodeApp, /, as_json: bool, **given: Any) -> int:  # noqa: ANN401
    """Run Puppet on many nodes, in the order of a plan.

    The plan is that of 'localpuppet plan' with the same options. The rollout asks all nodes whether
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
    from localpuppet.fleet.wiring.fleet import run
    from localpuppet.rollout.events import RolloutBegan
    from localpuppet.rollout.wiring.rollout import FleetRollouts, RolloutController

    rollouts = FleetRollouts(node)
    controller = RolloutController(node, rollouts)
    parent, nodes = None, None
    if given["parent"] is None:
        options = new_options(node, given)
    else:
        options, parent, nodes = options_of_parent(node, rollouts, given)
    with without_collector():
        selection = selected(node, given, nodes)
    approval = _approval(rollouts, given["approve"], selection.groups, options)
    if parent is not None and approval is None:
        approval = parent.approval  # the approved changes are one of its options
    began = RolloutBegan(
        id=rollouts.new_id(),
        caller=rollouts.caller,
        groups=selection.groups,
        options=options,
        title=selection.title,
        # Needed only to leave nodes out, and large.
        consumers=selection.consumers if options.skip_unready else {},
        parent=None if parent is None else parent.id,
        salt=_salt(options, approval),
        approval=approval,
        checks=selection.checks,
        needs=selection.needs,
        places=places(node, options.one_at_a_time_by, selection.groups),
    )
    if parent is not None:
        run(_give_back(controller, rollouts, parent.id))
    return run(_begin(controller, began, as_json=as_json))


def _approval(
    rollouts: "FleetRollouts", digest: str | None, groups: "Groups", options: "RolloutOptions"
) -> "Approval | None":
    """Return the approval that a digest names, if one is given, for the same plan."""
    from localpuppet.rollout.deciding import find, refuse_other

    if digest is None:
        return None
    approval, approved = find(rollouts.journals.states(), digest)
    refuse_other(approved, groups, options)
    return approval


def _salt(options: "RolloutOptions", approval: "Approval | None") -> str:
    """Return the salt of the nodes' change marks; with an approval, that of the approval."""
    from localpuppet.node.puppet.changes import SALT_DIGITS

    if approval is not None:
        return approval.salt
    return secrets.token_hex(SALT_DIGITS // 2) if options.noop else ""


@command("resume", exits=EXITS)
@click.argument("rollout", required=False, metavar="[ID]")
@operator_option
@flag("--run-checks", "With --operator: run the check commands of that rollout as you.")
@_JSON
@click.pass_obj
def resume_command(
    node: NodeApp, rollout: str | None, operator: str | None, run_checks: bool, as_json: bool
) -> int:
    """Resume a rollout that was interrupted or stopped.

    ID is the rollout; the default is the newest that can be resumed. It keeps its options. A node
    whose run was started does not run again: the command asks it for the result.

    With your key, this also works on another machine, because the bus has a checkpoint of the
    rollout. A process that still controls the rollout elsewhere ends. With --operator, you take
    over the rollout of another person; the policies of its nodes must allow you `takeover`.

    Examples:
      localpuppet rollout resume
      localpuppet rollout resume 20261122T110000Z-0a1b
      localpuppet rollout resume 20261122T110000Z-0a1b --operator alice
    """
    from localpuppet.fleet.wiring.fleet import run
    from localpuppet.rollout.wiring.rollout import FleetRollouts, RolloutController

    wanted = None if rollout is None else RolloutId.parse(rollout)
    whose = None if operator is None else SignerName.parse(operator)
    controller = RolloutController(node, FleetRollouts(node))
    return run(_resume(controller, wanted, whose, commands=run_checks, as_json=as_json))


async def _give_back(
    controller: "RolloutController", rollouts: "FleetRollouts", parent: "RolloutId"
) -> None:
    """Release the failed nodes that an earlier rollout kept on hold, as they will run again."""
    with closing(rollouts.journals.open(parent)) as journal:
        over = journal.state().over
    if over is not None and over.held_for_investigation:
        await controller.give_back(parent)


async def _begin(controller: "RolloutController", began: "RolloutBegan", *, as_json: bool) -> int:
    from localpuppet.fleet.cli.progress import shown
    from localpuppet.rollout.cli.rollout_text import RolloutProgress

    observer = render.observer(quiet=as_json, title="asking whether all are ready")
    async with shown(observer):
        journal = await controller.begin(began, RolloutProgress(observer, time.monotonic).take)
    return show_result(journal, as_json=as_json)


async def _resume(
    controller: "RolloutController",
    rollout: RolloutId | None,
    owner: SignerName | None,
    *,
    commands: bool,
    as_json: bool,
) -> int:
    from localpuppet.fleet.cli.progress import shown
    from localpuppet.rollout.cli.rollout_text import RolloutProgress

    observer = render.observer(quiet=as_json, title="asking whether all are ready")
    progress = RolloutProgress(observer, time.monotonic)
    async with shown(observer):
        journal = await controller.resume(
            rollout, progress.take, replay=progress.replay, owner=owner, commands=commands
        )
    return show_result(journal, as_json=as_json)


def show_result(journal: "JournalReader", *, as_json: bool) -> int:
    """Print the result of a rollout and return the exit code."""
    from localpuppet.rollout.cli.rollout_text import outcome

    report = journal.report()
    journal.close()
    if as_json:
        render.emit_json(report.to_dict())
    else:
        render.emit(outcome(report))
    return 0 if report.succeeded else 1
