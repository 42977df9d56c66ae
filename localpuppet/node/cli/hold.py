"""`localpuppet disable` and `enable`: holds on this node."""

from datetime import timedelta

import click

from localpuppet.base.errors import InvalidInputError, PuppetMissingError
from localpuppet.base.formats.names import did_you_mean
from localpuppet.base.formats.text import parse_line
from localpuppet.base.formats.times import parse_duration, show_time
from localpuppet.node.cli import render
from localpuppet.node.cli.apply import user
from localpuppet.node.cli.node_options import node_option, only_here
from localpuppet.node.runs.hold import Hold
from localpuppet.node.runs.holds import Holds
from localpuppet.node.wiring.node import NodeWiring
from localpuppet.node.wiring.state import open_holds, rollback_in_force


def _holds(node: NodeWiring) -> Holds:
    """Return the holds of this node, even if Puppet is not installed."""
    try:
        return open_holds(node, ask=True)
    except PuppetMissingError:
        return open_holds(node, ask=False)


@click.command(
    "disable",
    short_help="Put this node on hold: nothing runs Puppet here.",
    epilog="""\b
Examples:
  localpuppet disable -m 'database migration' --for 2h
  localpuppet disable -m 'rollout 42' --owner release-bot
  localpuppet disable -m 'rollout 42' --for 1h --node web01.example.com
""",
)
@click.option("-m", "--message", required=True, metavar="TEXT", help="Why: one line, shown to all.")
@click.option(
    "--for", "length", metavar="TIME", help="End the hold by itself after 90, 30m, 2h, 3d."
)
@click.option("--owner", metavar="NAME", help="The owner of the hold.  [default: you]")
@node_option(required=False)
@click.option("--json", "as_json", is_flag=True, help="Print the hold as JSON.")
@click.pass_obj
def disable_command(
    node: NodeWiring,
    message: str,
    length: str | None,
    owner: str | None,
    nodes: tuple[str, ...],
    as_json: bool,
) -> int:
    """Put this node on hold: neither localpuppet nor a Puppet agent runs.

    With --node, put other nodes on hold in your name; their policies must allow you `disable`.
    """
    only_here(nodes, __owner=owner)
    seconds = None if length is None else parse_duration(length, what="length of a hold")
    if nodes:
        values = {"message": message, "length": length}
        return node.additions.ask(nodes, "disable", as_json=as_json, **values)
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
    if as_json:
        render.emit_json({"schema": 1, **hold.to_dict()})
        return 0
    for replaced in before:
        render.emit(f"replaced: {replaced}")
    render.emit(f"on hold: {hold}")
    return 0


@click.command(
    "enable",
    short_help="End your own hold on this node, or all with --all.",
    epilog="""\b
Examples:
  localpuppet enable                       end yours, and name the others
  localpuppet enable --owner release-bot   end another's
  localpuppet enable --all                 end every hold
  localpuppet enable --node web01.example.com    end yours there
""",
)
@click.option("--owner", metavar="NAME", help="End this owner's hold.  [default: yours]")
@click.option("--all", "everyone", is_flag=True, help="End the holds of all owners.")
@node_option(required=False)
@click.option("--json", "as_json", is_flag=True, help="Print the ended holds as JSON.")
@click.pass_obj
def enable_command(
    node: NodeWiring, owner: str | None, everyone: bool, nodes: tuple[str, ...], as_json: bool
) -> int:
    """End your own hold on this node, and list the remaining ones.

    With --all, end every hold, including damaged ones and that of 'puppet agent --disable'.

    With --node, end your own hold on other nodes; their policies must allow you `enable`.
    """
    only_here(nodes, __owner=owner, __all=everyone)
    if everyone and owner is not None:
        raise click.UsageError("--owner does not go with --all")
    if nodes:
        return node.additions.ask(nodes, "enable", as_json=as_json)
    holds = _holds(node)
    owners = [] if owner is None else [hold.owner for hold in holds.active()]
    if owner is not None and owner not in owners:
        raise InvalidInputError(
            f"there is no hold of {owner!r}", where="--owner", hint=did_you_mean(owner, owners)
        )
    mine = user() if owner is None else owner
    ended = holds.remove(None if everyone else mine)
    left = holds.active()
    refresh_metrics(node)
    if as_json:
        lists = {"ended": ended, "holds": left}
        shown = {name: [hold.to_dict() for hold in found] for name, found in lists.items()}
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
        render.emit("'localpuppet enable --owner NAME' or '--all' ends them")
    return 0


def refresh_metrics(node: NodeWiring) -> None:
    """Update holds and rollback in the textfile; if the disk refuses, print a note."""
    from localpuppet.base.errors import StateError
    from localpuppet.node.runs import metrics

    settings = node.settings
    try:
        metrics.update(
            settings.metrics,
            None,
            holds=len(open_holds(node, ask=False).active()),
            rollback=rollback_in_force(node),
            now=node.clock.now(),
        )
    except StateError as error:
        render.QuietObserver().note(f"metrics could not be written: {error}")
