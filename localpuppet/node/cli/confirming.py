"""Confirmations of commands that are hard to undo: a question, `--yes` and `--dry-run`."""

import sys

import click

from localpuppet.node.cli import render
from localpuppet.node.cli.command import flag, options

confirmation_options = options(
    "Confirmation",
    flag("--dry-run", "Show what would change; change nothing."),
    flag("-y --yes", "Do not ask. Without a terminal, the command requires this option."),
)


def confirm(question: str, *, yes: bool) -> None:
    """Ask the person at the terminal, unless they said yes.

    Raises:
        click.UsageError: There is no terminal.
        click.exceptions.Exit: The answer is no.
    """
    if yes:
        return
    if not render.on_terminal(sys.stdin):
        raise click.UsageError(
            f"cannot {question} without a confirmation: pass --yes, or --dry-run to look"
        )
    if not click.confirm(f"{question}?", err=True):
        render.say("nothing changed", err=True)
        raise click.exceptions.Exit(1)
