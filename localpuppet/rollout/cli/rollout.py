"""`localpuppet rollout`: the group of rollout commands."""

import click

from localpuppet.node.cli.lazy_group import CommandGroup

MODULES = {
    "approve": "rollout.cli.rollout_continue",
    "continue": "rollout.cli.rollout_continue",
    "list": "rollout.cli.rollout_reported",
    "pause": "rollout.cli.rollout_continue",
    "plan": "rollout.cli.rollout_plan",
    "report": "rollout.cli.rollout_reported",
    "resume": "rollout.cli.rollout_run",
    "rollback": "rollout.cli.rollout_continue",
    "run": "rollout.cli.rollout_run",
    "status": "rollout.cli.rollout_reported",
    "stop": "rollout.cli.rollout_stop",
}


@click.group(cls=CommandGroup, sections={"Commands": MODULES})
def rollout_command() -> None:
    """Run many nodes in order, and control such a rollout.

    The process of 'rollout run' controls the rollout. If it ends, 'rollout resume' continues the
    rollout, on this machine or on another.

    Examples:
      localpuppet rollout plan --catalogs --release shop/tags/r7
      localpuppet rollout run --site site.yaml --canary 1 --window 5
      localpuppet rollout run --query role=web --order none --batch 25%
      localpuppet rollout status --watch
      localpuppet rollout resume 20261122T110000Z-0a1b
      localpuppet rollout stop
    """
