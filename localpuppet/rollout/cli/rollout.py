"""`localpuppet rollout`: the group of rollout commands."""

import click

from localpuppet.node.cli.lazy_group import Verbs

# Command → module, as in `main.py`.
VERBS = {
    "approve": "rollout.cli.rollout_approve",
    "continue": "rollout.cli.rollout_continue",
    "list": "rollout.cli.rollout_reported",
    "plan": "rollout.cli.rollout_plan",
    "report": "rollout.cli.rollout_reported",
    "resume": "rollout.cli.rollout_run",
    "rollback": "rollout.cli.rollout_continue",
    "run": "rollout.cli.rollout_run",
    "status": "rollout.cli.rollout_reported",
    "stop": "rollout.cli.rollout_stop",
}

EPILOG = """\b
Examples:
  localpuppet rollout run --site site.yaml --canary 1 --window 5
  localpuppet rollout run --query role=web --order none --batch 25%
  localpuppet rollout plan --catalogs --release shop/tags/r7
  localpuppet rollout status --watch
  localpuppet rollout list
  localpuppet rollout report 20261122T110000Z-0a1b --json
  localpuppet rollout resume 20261122T110000Z-0a1b
  localpuppet rollout continue
  localpuppet rollout approve 20261122T110000Z-0a1b web01.example.com
  localpuppet rollout rollback
  localpuppet rollout stop
"""


@click.group(cls=Verbs, verbs=VERBS, epilog=EPILOG, no_args_is_help=True)
def rollout_command() -> None:
    """Run many nodes in order; a rollout survives its operator."""
