"""`localpuppet rollout`: the group of its commands, without what they load."""

import click

from localpuppet.base.formats.names import RolloutId, SignerName
from localpuppet.node.cli.command import CommandGroup, option

_CONTROL, _RUN = "rollout.cli.rollout_control", "rollout.cli.rollout_run"
_ALL = ("approve", "list", "pause", "plan", "report", "resume", "rollback", "run", "status", "stop")
MODULES = {name: _RUN if name in ("plan", "resume", "run") else _CONTROL for name in _ALL}


@click.group(
    cls=CommandGroup,
    sections={"Commands": MODULES},
    renamed={"continue": "resume", "order": "plan"},
)
def rollout_command() -> None:
    """Run many nodes in order, and control such a rollout.

    The process of 'rollout run' controls the rollout. If it pauses or ends, 'rollout resume'
    continues the rollout, on this machine or on another.

    Examples:
      localpuppet rollout plan --release shop/tags/r7
      localpuppet rollout run --site site.yaml --canary 1 --window 5
      localpuppet rollout run --query role=web --order none --batch 25%
      localpuppet rollout status --watch
      localpuppet rollout resume 20261122T110000Z-0a1b
      localpuppet rollout stop
    """


operator_option = option(
    "--operator NAME",
    "The operator of the rollout, if not you; policies must allow you `takeover`.",
)
id_argument = click.argument("rollout", required=False, metavar="[ID]")


def parse_names(
    rollout: str | None, operator: str | None
) -> tuple[RolloutId | None, SignerName | None]:
    return (
        None if rollout is None else RolloutId.parse(rollout),
        None if operator is None else SignerName.parse(operator),
    )
