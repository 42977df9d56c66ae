"""`localpuppet disable`, `enable` and `rollback`: holds on this node, and earlier releases."""

from datetime import timedelta

import click

from localpuppet.base.errors import PuppetMissingError, StateError
from localpuppet.base.formats.names import check_known
from localpuppet.base.formats.text import one_line, parse_line
from localpuppet.base.formats.times import parse_duration, show_time
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render, render_run
from localpuppet.node.cli.command import ANY, command, flag, only_here, option, selects_nodes, user
from localpuppet.node.cli.node_setup import complete_tag
from localpuppet.node.node_ports import NodeSelection
from localpuppet.node.runs.holds import Hold, Holds


def _holds(node: NodeApp) -> Holds:
    """Return the holds of this node, even if Puppet is not installed."""
    try:
        return node.holds(ask=True)
    except PuppetMissingError:
        return node.holds(ask=False)


@command("disable", exits={1: "a node refused", 69: "a node did not answer"})
@selects_nodes(ANY)
@option(
    "-m --message TEXT", "The reason, in one line; 'status' and 'nodes' show it.", required=True
)
@option("--for length TIME", "End the hold after TIME.  [default: never]")
@option("--owner NAME", "The owner of the hold.  [default: you]")
@flag("--json as_json", "Print the hold as JSON.")
@click.pass_obj
def disable_command(
    node: NodeApp,
    message: str,
    length: str | None,
    owner: str | None,
    selection: NodeSelection,
    as_json: bool,
) -> int:
    """Put this node, or other nodes, on hold.

    On a node on hold, neither localpuppet nor a Puppet agent runs. Without NODE, the hold is on
    this node. Other nodes are put on hold in your name; their policies must allow you `disable`.

    Examples:
      localpuppet disable -m 'database migration' --for 2h
      localpuppet disable -m 'change 42' --owner release-bot
      localpuppet disable web01.example.com -m 'change 42' --for 1h
    """
    only_here(selection, __owner=owner)
    seconds = None if length is None else parse_duration(length, where="--for")
    if selection:
        return node.additions.ask(
            selection, "disable", as_json=as_json, message=message, length=length
        )
    now = node.clock.now()
    hold = Hold(
        owner=parse_line(user() if owner is None else owner, what="owner"),
        reason=parse_line(message, what="message"),
        since=show_time(now),
        until=show_time(now + timedelta(seconds=seconds)) if seconds else None,
    )
    holds = _holds(node)
    before = [replaced for replaced in holds.active() if replaced.owner == hold.owner]
    holds.add(hold)
    refresh_metrics(node)
    parts = [hold.reason, *([f"for {length}"] if length else []), *_owners([hold])]
    _publish(node, "disable", parts)
    if as_json:
        render.emit_json({"schema": 1, **hold.to_dict()})
        return 0
    for replaced in before:
        render.emit(f"replaced: {replaced}")
    render.emit(f"on hold: {hold}")
    return 0


@command("enable", exits={1: "a node refused", 69: "a node did not answer"})
@selects_nodes(ANY)
@option("--owner NAME", "End the hold of this owner.  [default: you]")
@flag("--all-owners everyone", "End the holds of all owners.")
@flag("--json as_json", "Print the ended holds as JSON.")
@click.pass_obj
def enable_command(
    node: NodeApp, owner: str | None, everyone: bool, selection: NodeSelection, as_json: bool
) -> int:
    """End your hold on this node, or on other nodes.

    The command lists the holds that remain; Puppet runs again when no hold remains. With
    --all-owners, it also ends damaged holds and that of 'puppet agent --disable'.

    With NODE, it ends your own hold on other nodes; their policies must allow you `enable`.

    Examples:
      localpuppet enable                       end your hold, list the others
      localpuppet enable --owner release-bot   end the hold of another owner
      localpuppet enable --all-owners          end every hold on this node
      localpuppet enable web01.example.com     end your hold on another node
    """
    only_here(selection, __owner=owner, __all_owners=everyone)
    if everyone and owner is not None:
        raise click.UsageError("--owner and --all-owners exclude each other")
    if selection:
        return node.additions.ask(selection, "enable", as_json=as_json)
    holds = _holds(node)
    if owner is not None:
        owners = [hold.owner for hold in holds.active()]
        check_known(owner, owners, f"there is no hold of {owner!r}", where="--owner")
    mine = user() if owner is None else owner
    ended = holds.remove(None if everyone else mine)
    left = holds.active()
    refresh_metrics(node)
    if ended:
        _publish(node, "enable", _owners(ended))
    if as_json:
        lists = {"ended": ended, "holds": left}
        shown = {name: [hold.to_dict() for hold in of_node] for name, of_node in lists.items()}
        render.emit_json({"schema": 1, **shown})
        return 0
    now = node.clock.now()
    for hold in ended:
        render.emit(f"ended: {hold.shown(now)}")
    if not ended:
        render.emit(
            f"there was no hold of {render.user_text(mine)}" if left else "there was no hold"
        )
    for hold in left:
        render.emit(click.style(f"still on hold: {hold.shown(now)}", fg="yellow"))
    if left:
        render.emit(
            "'localpuppet enable --owner NAME' or 'localpuppet enable --all-owners' ends them"
        )
    return 0


def _owners(holds: list[Hold]) -> list[str]:
    """Return the owners of holds, except the user, each with a word."""
    return [f"owner {hold.owner}" for hold in holds if hold.owner != user()]


def _publish(node: NodeApp, action: str, parts: list[str]) -> None:
    """Have the fleet learn of a command; if that fails, print a note."""
    node.neighbours.after_command(render.note, user(), action, one_line(", ".join(parts)))


def refresh_metrics(node: NodeApp) -> None:
    """Update holds and rollback in the textfile; if the disk refuses, print a note."""
    from localpuppet.node.runs import metrics_file

    settings = node.settings
    try:
        metrics_file.update(
            settings.metrics,
            None,
            holds=len(node.holds(ask=False).active()),
            rollback=node.rollback_in_force(),
            now=node.clock.now(),
        )
    except StateError as error:
        render.note(f"cannot write the metrics: {error}")


@command("rollback", exits={1: "", 3: "", 69: "", 75: ""})
@option(
    "--to tag TAG",
    "Switch to this release.  [default: the previous good one]",
    shell_complete=complete_tag,
)
@flag("--end", "End the rollback: the input decides again.")
@flag("--json as_json", "Print JSON.")
@click.pass_obj
def rollback_command(node: NodeApp, tag: str | None, end: bool, as_json: bool) -> None:
    """Switch this node to an earlier release.

    The next run applies that release, with the classes and parameters of its last good run on this
    node. The rollback stays in force, also for the timer, until the input changes or you run
    'localpuppet rollback --end'. A second rollback switches to the release before.

    If the release is no longer on this node, localpuppet fetches and verifies it first.

    Examples:
      localpuppet rollback && localpuppet apply
      localpuppet rollback --to r1
      localpuppet rollback --end               follow input.yaml again
    """
    if end:
        _end(node, as_json)
        return
    from localpuppet.node.runs.rollback_service import RollbackService

    with node.store.locks.take_for_run():
        rollback, left, ended = RollbackService(node.good_runs, node.ledger).go_back(
            node.inputs.read(str(node.settings.input)),
            tag=tag,
            user=user(),
            now=node.clock.now(),
            ensure=lambda app: node.provider.ensure_present(app, node.note),
        )
    refresh_metrics(node)
    if as_json:
        render.emit_json({"schema": 1, "from": left, **rollback.to_public()})
        return
    ran = render_run.moment(ended)
    render.emit(f"rolled back from {left} to {rollback.release}, as it ran on {ran}")
    render.emit("'localpuppet apply' runs it; a changed input or a new assignment ends it")


def _end(node: NodeApp, as_json: bool) -> None:
    rollback = node.ledger.rollback()
    node.ledger.end_rollback()
    refresh_metrics(node)
    if as_json:
        render.emit_json({"schema": 1, "ended": rollback.to_public() if rollback else None})
    elif rollback is None:
        render.emit("there was no rollback; the input decides")
    else:
        render.emit(f"ended: {rollback}")
        render.emit("the input decides again; 'localpuppet apply' runs it")
