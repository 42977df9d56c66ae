"""`localpuppet rollout run` and `resume`: carry a rollout out to its end."""

import secrets
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from localpuppet.base.formats.names import RolloutId, SignerName
from localpuppet.node.cli import render
from localpuppet.node.cli.command import command, flag
from localpuppet.node.wiring.node import NodeWiring
from localpuppet.rollout.cli.rollout_commands import operator_option
from localpuppet.rollout.cli.rollout_options import how_options, new_options, options_of_parent
from localpuppet.rollout.cli.rollout_selection import (
    earlier_options,
    places,
    selected,
    what_options,
)
from localpuppet.rollout.cli.site_options import without_collector

if TYPE_CHECKING:
    from localpuppet.rollout.execution.changes.approval import Approval
    from localpuppet.rollout.execution.events import RolloutBegan
    from localpuppet.rollout.execution.journal import JournalReader
    from localpuppet.rollout.execution.options import RolloutOptions
    from localpuppet.rollout.execution.selecting import Groups
    from localpuppet.rollout.wiring.checkpoints import FleetRollouts
    from localpuppet.rollout.wiring.rollout import RolloutController

_JSON = flag("--json as_json", "Print the report as JSON.")
EXITS = {
    0: "every node succeeded",
    1: "a node did not succeed",
    2: "an option or the site is invalid, or no node is selected",
    69: "the bus is unreachable",
    75: "another process controls the rollout, here or on another machine",
    130: "^C before the rollout began",
}


@command("run", exits=EXITS)
@what_options
@earlier_options
@how_options
@_JSON
@click.pass_obj
def run_command(node: NodeWiring, /, as_json: bool, **given: Any) -> int:  # noqa: ANN401
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
    from localpuppet.fleet.wiring.run_async import run
    from localpuppet.rollout.execution.events import RolloutBegan
    from localpuppet.rollout.wiring.checkpoints import FleetRollouts
    from localpuppet.rollout.wiring.rollout import RolloutController

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
    from localpuppet.rollout.execution.approving import find, refuse_other

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
    node: NodeWiring, rollout: str | None, operator: str | None, run_checks: bool, as_json: bool
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
    from localpuppet.fleet.wiring.run_async import run
    from localpuppet.rollout.wiring.checkpoints import FleetRollouts
    from localpuppet.rollout.wiring.rollout import RolloutController

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
