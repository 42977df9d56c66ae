"""`localpuppet notify`: try the channels of notifications."""

import uuid
from contextlib import closing
from typing import TYPE_CHECKING

import click

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.formats.names import did_you_mean
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import CommandGroup, command, flag

if TYPE_CHECKING:
    from collections.abc import Mapping

    from localpuppet.web.notify.notice_ledger import ChannelState
    from localpuppet.web.notify.routing import NotifySettings


@click.group(cls=CommandGroup, sections={"Commands": {"test": "web.cli.notify"}})
def notify_command() -> None:
    """Try the channels of notifications.

    'localpuppet web --notify' sends the messages.

    Examples:
      localpuppet notify test --list
      localpuppet notify test chat
    """


@command("test", exits={0: "", 69: "the channel did not take the message"})
@click.argument("name", required=False)
@flag("--list lists", "List the channels, and send nothing.")
@flag("--json as_json", "Print JSON.")
@click.pass_obj
def test_command(node: NodeApp, name: str | None, lists: bool, as_json: bool) -> None:
    """Send a test message to a channel, or list the channels.

    The message goes to the channel NAME of 'notify:' in localpuppet.yaml, once. GitHub, GitLab and
    Gitea get a test status for the newest release that is staged and verified here; it stays there.
    --list shows each channel, and whether the last message to it failed.

    Examples:
      localpuppet notify test --list
      localpuppet notify test chat
    """
    from localpuppet.web.notify.channels import (
        Channel,
        ChannelError,
        StatusSender,
        verified_releases,
    )
    from localpuppet.web.notify.routing import notify_settings
    from localpuppet.web.notify.wording import test_notice

    settings = node.section(notify_settings)
    if lists == (name is not None):
        raise InvalidInputError("requires either NAME or --list", where="notify test")
    if name is None:
        _list(settings, _states(node, settings), as_json=as_json)
        return
    if name not in settings.channels:
        hint = did_you_mean(name, list(settings.channels)) or "see 'localpuppet notify test --list'"
        raise InvalidInputError(f"no channel has the name {name}", where="notify", hint=hint)
    now = node.clock.now().timestamp()
    about = settings.channels[name]
    channel, what = Channel(about, node.settings.root), "a test message"
    try:
        if about.type.is_git_host:
            state, sources = node.settings.state, node.settings.sources
            sender = StatusSender(channel, settings.fleet, settings.dashboard)
            what = sender.test(verified_releases(state, sources, source=about.source))
        else:
            channel.send(test_notice(f"msg_{uuid.uuid4().hex}", settings, now), now=now)
    except ChannelError as error:
        raise UnavailableError(
            f"did not take the message: {error}", where=f"channel {name}"
        ) from error
    if as_json:
        render.emit_json({"schema": 1, "channel": name, "sent": True})
    else:
        render.emit(f"channel {name} took {what}")


def _states(node: NodeApp, settings: "NotifySettings") -> "Mapping[str, ChannelState]":
    from localpuppet.web.notify.notice_ledger import FILE, NoticeLedger

    path = node.settings.state / FILE
    if not path.exists():
        return {}
    with closing(NoticeLedger(path, settings.fleet, settings.dashboard, lambda: 0.0)) as ledger:
        return ledger.states(settings.channels)


def _list(
    settings: "NotifySettings", states: "Mapping[str, ChannelState]", *, as_json: bool
) -> None:
    rows: list[dict[str, str | int]] = [
        {
            "channel": name,
            "type": str(channel.type),
            "severity": str(channel.severity),
            "kinds": " ".join(sorted(channel.kinds)),
            "query": channel.query,
            "waiting": states[name].waiting if name in states else 0,
            "problem": states[name].problem if name in states else "",
        }
        for name, channel in settings.channels.items()
    ]
    if as_json:
        render.emit_json({"schema": 1, "channels": rows})
        return
    head = ("CHANNEL", "TYPE", "SEVERITY", "KINDS", "QUERY", "WAITING", "PROBLEM")
    shown = [tuple(map(str, row.values())) for row in rows]
    render.emit(render.table(head, shown) if shown else "no channel in 'notify:'")
