"""`localpuppet rollout`: carry a plan out, watch it, go on with it."""

import click

from localpuppet.cli.lazy_group import Verbs

# Verb → module, as in main.
VERBS = {
    "approve": "orchestrator.rollout_approve",
    "continue": "orchestrator.rollout_continue",
    "list": "orchestrator.rollout_told",
    "plan": "orchestrator.rollout_plan",
    "report": "orchestrator.rollout_told",
    "resume": "orchestrator.rollout_run",
    "rollback": "orchestrator.rollout_continue",
    "run": "orchestrator.rollout_run",
    "status": "orchestrator.rollout_told",
    "stop": "orchestrator.rollout_stop",
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
    """Run many nodes in the right order, and survive whoever does it."""
