"""`localpuppet runonce` and `last-run`: send requests to other nodes."""

import click

from localpuppet.base.formats.names import split_tags
from localpuppet.base.formats.times import parse_duration
from localpuppet.fleet.requests.request import MAX_LIFETIME, PATIENCE
from localpuppet.node.app import NodeApp
from localpuppet.node.cli.command import command, flag, nodes_argument, option

_JSON = flag("--json as_json", "Print the replies as JSON.")


def _patience(_ctx: click.Context, _param: click.Parameter, value: str | None) -> float:
    seconds = PATIENCE if value is None else parse_duration(value, what="--wait-timeout")
    if seconds > MAX_LIFETIME:
        raise click.UsageError(f"--wait-timeout must be at most {MAX_LIFETIME // 60}m")
    return seconds


_WAIT_TIMEOUT = option(
    "--wait-timeout patience TIME",
    "Wait at most TIME for the replies, up to 5m.  [default: 20s]",
    callback=_patience,
)
EXITS = {0: "every node accepted or answered", 1: "a node refused", 69: "a node did not answer"}


@command("runonce", exits=EXITS)
@nodes_argument(required=True)
@flag("--noop", "Change nothing; show what would change.")
@option("--tags TAGS", "Apply only resources with one of these tags (a,b).")
@_WAIT_TIMEOUT
@_JSON
@click.pass_obj
def runonce_command(
    node: NodeApp,
    nodes: tuple[str, ...],
    noop: bool,
    tags: str | None,
    patience: float,
    as_json: bool,
) -> int:
    """Ask nodes for a Puppet run.

    Each node replies at once whether it accepts, and then starts a run. The command does not wait
    for the run: use 'last-run' afterwards, or 'trigger --wait' instead. The policy of each node
    must allow you `runonce`.

    Examples:
      localpuppet runonce web01.example.com web02.example.com
      localpuppet runonce web01.example.com --noop
    """
    from localpuppet.fleet.cli.asking import ask_nodes
    from localpuppet.fleet.requests.request import RunOnce

    args = RunOnce(noop=noop, tags=split_tags(tags))
    return ask_nodes(node, nodes, "runonce", args, as_json=as_json, patience=patience)


@command("last-run", exits=EXITS)
@nodes_argument(required=True)
@_WAIT_TIMEOUT
@_JSON
@click.pass_obj
def last_run_command(node: NodeApp, nodes: tuple[str, ...], patience: float, as_json: bool) -> int:
    """Ask nodes for the record of their last finished run.

    The policy of each node must allow you `last_run_summary`.

    Examples:
      localpuppet last-run web01.example.com
      localpuppet last-run web01.example.com --json | jq '.replies[].result'
    """
    from localpuppet.fleet.cli.asking import ask_nodes
    from localpuppet.fleet.requests.request import NoArguments

    return ask_nodes(
        node, nodes, "last_run_summary", NoArguments(), as_json=as_json, patience=patience
    )
