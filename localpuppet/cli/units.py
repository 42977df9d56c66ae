"""`localpuppet units`: the systemd service and timer that we ship."""

import click

from localpuppet import share
from localpuppet.cli import render
from localpuppet.errors import InvalidInputError

NAMES = ("localpuppet.service", "localpuppet.timer")


@click.command(
    "units",
    epilog="""\b
Install them:
  for unit in localpuppet.service localpuppet.timer; do
      localpuppet units $unit > /etc/systemd/system/$unit
  done
  systemctl daemon-reload && systemctl enable --now localpuppet.timer
""",
)
@click.argument("name", required=False, type=click.Choice(NAMES))
@click.option("--json", "as_json", is_flag=True, help="Print JSON: name to text.")
def units_command(name: str | None, as_json: bool) -> None:
    """Print the unit NAME, or both."""
    try:
        texts = {
            unit: share.path(f"units/{unit}").read_text("utf-8")
            for unit in NAMES
            if name in (None, unit)
        }
    except OSError as error:
        raise InvalidInputError(f"cannot be read: {error}", where="units") from error
    if as_json:
        render.emit_json(texts)
        return
    for unit, text in texts.items():
        if name is None:
            render.emit(f"# {unit}")
        render.emit(text)
