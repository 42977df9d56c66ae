"""`localpuppet disable` and `enable`: holds on this node."""

from datetime import timedelta

import click

from localpuppet.cli import render
from localpuppet.cli.apply import user
from localpuppet.cli.wiring import Parts
from localpuppet.errors import InvalidInputError, PuppetMissingError
from localpuppet.holds import Holds
from localpuppet.model.duration import parse_duration
from localpuppet.model.hold import Hold
from localpuppet.model.names import did_you_mean
from localpuppet.model.run import show_time
from localpuppet.model.text import parse_line


def _holds(parts: Parts) -> Holds:
    """Return the holds; a node without Puppet can be put on hold, too."""
    try:
        return parts.holds(ask=True)
    except PuppetMissingError:
        return parts.holds(ask=False)


@click.command(
    "disable",
    epilog="""\b
Examples:
  localpuppet disable -m 'database migration' --for 2h
  localpuppet disable -m 'rollout 42' --owner release-bot
""",
)
@click.option("-m", "--message", required=True, metavar="TEXT", help="Why: one line, shown to all.")
@click.option(
    "--for", "length", metavar="TIME", help="End the hold by itself after 90, 30m, 2h, 3d."
)
@click.option("--owner", metavar="NAME", help="Who holds it.  [default: you]")
@click.option("--json", "as_json", is_flag=True, help="Print the hold as JSON.")
@click.pass_obj
def disable_command(
    parts: Parts, message: str, length: str | None, owner: str | None, as_json: bool
) -> None:
    """Put this node on hold: neither localpuppet nor a Puppet agent runs."""
    now = parts.clock.now()
    seconds = None if length is None else parse_duration(length, what="length of a hold")
    hold = Hold(
        owner=parse_line(user() if owner is None else owner, what="owner"),
        reason=parse_line(message, what="message"),
        since=show_time(now),
        until=show_time(now + timedelta(seconds=seconds)) if seconds else None,
    )
    holds = _holds(parts)
    before = [found for found in holds.active() if found.owner == hold.owner]
    holds.add(hold)
    _refresh_metrics(parts)
    if as_json:
        render.emit_json({"schema": 1, **hold.to_dict()})
        return
    for found in before:
        render.emit(f"replaced: {found}")
    render.emit(f"on hold: {hold}")


@click.command(
    "enable",
    epilog="""\b
Examples:
  localpuppet enable                       end every hold
  localpuppet enable --owner release-bot   end one owner's
""",
)
@click.option("--owner", metavar="NAME", help="End only this owner's hold.  [default: all]")
@click.option("--json", "as_json", is_flag=True, help="Print the ended holds as JSON.")
@click.pass_obj
def enable_command(parts: Parts, owner: str | None, as_json: bool) -> None:
    """End the holds on this node, also one that 'puppet agent --disable' made."""
    holds = _holds(parts)
    owners = [] if owner is None else [hold.owner for hold in holds.active()]
    if owner is not None and owner not in owners:
        raise InvalidInputError(
            f"there is no hold of {owner!r}", where="--owner", hint=did_you_mean(owner, owners)
        )
    ended = holds.remove(owner)
    _refresh_metrics(parts)
    if as_json:
        render.emit_json({"schema": 1, "ended": [hold.to_dict() for hold in ended]})
        return
    for hold in ended:
        render.emit(f"ended: {hold}")
    if not ended:
        render.emit("there was no hold")


def _refresh_metrics(parts: Parts) -> None:
    from localpuppet import metrics
    from localpuppet.errors import StateError

    count = len(parts.holds(ask=False).active())
    try:
        metrics.update(parts.settings.metrics, None, holds=count, now=parts.clock.now())
    except StateError as error:
        render.Silent().note(f"metrics could not be written: {error}")
