"""`localpuppet completion`: shell completion."""

import click
from click.shell_completion import get_completion_class

from localpuppet.cli import render
from localpuppet.errors import LocalpuppetError
from localpuppet.wiring.node import NodeWiring


def complete_run(ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the ids of runs that begin as the user has begun."""
    try:
        ids = NodeWiring(ctx.find_root().params.get("root")).records.ids()
    except LocalpuppetError:
        return []  # a shell's completion has nowhere to say what is wrong
    return [run for run in ids if run.startswith(incomplete)]


@click.command(
    "completion",
    epilog="""\b
Examples, which install it:
  localpuppet completion bash > /etc/bash_completion.d/localpuppet
  localpuppet completion zsh  > "${fpath[1]}/_localpuppet"
  localpuppet completion fish > ~/.config/fish/completions/localpuppet.fish
""",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> None:
    """Print the completion script for SHELL."""
    shell_class = get_completion_class(shell)
    if shell_class is None:
        raise click.UsageError(f"no completion for {shell}")
    complete = shell_class(ctx.find_root().command, {}, "localpuppet", "_LOCALPUPPET_COMPLETE")
    render.emit(complete.source())
