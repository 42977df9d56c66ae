"""`localpuppet units`: print localpuppet's systemd units."""

import click

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.share.files import shared_file
from localpuppet.node.cli import render
from localpuppet.node.cli.command import command, flag

TIMER = ("localpuppet.service", "localpuppet.timer")
AGENT = ("localpuppet-agent.service",)
SPLIT = (
    "localpuppet-agent-run.socket",
    "localpuppet-agent-run.service",
    "localpuppet-agent-net.service",
)
WEB = ("localpuppet-web.service", "localpuppet-puppetdb.service")
NAMES = (*TIMER, *AGENT, *SPLIT, *WEB)


@command("units")
@click.argument("name", required=False, type=click.Choice(NAMES), metavar="[NAME]")
@flag("--json as_json", "Print JSON.")
def units_command(name: str | None, as_json: bool) -> None:
    """Print the systemd units of localpuppet.

    Without NAME, the command prints all units. Write those of one form to /etc/systemd/system, then
    run 'systemctl daemon-reload' and 'systemctl enable --now NAME'.

    A node has the units of one of these forms:
      localpuppet.service              a run every half hour, without agent
      localpuppet.timer
      localpuppet-agent.service        the agent in one process
      localpuppet-agent-run.socket     the agent in two processes; the one
      localpuppet-agent-run.service      on the network has no privileges
      localpuppet-agent-net.service
    A machine that serves the dashboard, or PuppetDB's API, also has:
      localpuppet-web.service          the dashboard, over TLS
      localpuppet-puppetdb.service     PuppetDB's API, on loopback

    Examples:
      cd /etc/systemd/system
      localpuppet units localpuppet-agent.service > localpuppet-agent.service
      localpuppet units --json | jq -r '.units | keys[]'
    """
    try:
        texts = {
            unit: shared_file(f"units/{unit}").read_text("utf-8")
            for unit in NAMES
            if name in (None, unit)
        }
    except OSError as error:
        raise InvalidInputError(f"cannot be read: {error}", where="units") from error
    if as_json:
        render.emit_json({"schema": 1, "units": texts})
        return
    for unit, text in texts.items():
        if name is None:
            render.emit(f"# {unit}")
        render.emit(text)
