"""`localpuppet units`: print localpuppet's systemd units."""

import click

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.share.files import shared_file
from localpuppet.node.cli import render

TIMER = ("localpuppet.service", "localpuppet.timer")
AGENT = ("localpuppet-agent.service",)
SPLIT = (
    "localpuppet-agent-run.socket",
    "localpuppet-agent-run.service",
    "localpuppet-agent-net.service",
)
WEB = ("localpuppet-web.service",)
NAMES = (*TIMER, *AGENT, *SPLIT, *WEB)


@click.command(
    "units",
    epilog="""\b
Three forms, of which a node has one:
  localpuppet.service              a run every half hour, and no agent
  localpuppet.timer
  localpuppet-agent.service        the agent in one process
  localpuppet-agent-run.socket     the agent in two, one without rights
  localpuppet-agent-run.service
  localpuppet-agent-net.service
Beside them, where people look at the fleet:
  localpuppet-web.service          the page, over TLS

\b
Examples:
  cd /etc/systemd/system
  localpuppet units localpuppet-agent.service > localpuppet-agent.service
  systemctl daemon-reload && systemctl enable --now localpuppet-agent.service
""",
)
@click.argument("name", required=False, type=click.Choice(NAMES), metavar="[NAME]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def units_command(name: str | None, as_json: bool) -> None:
    """Print the unit NAME, or all."""
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
