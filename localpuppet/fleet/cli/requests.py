"""`localpuppet runonce` and `last-run`: send requests to other nodes."""

import click

from localpuppet.base.formats.names import parse_tag
from localpuppet.base.formats.times import parse_duration
from localpuppet.fleet.requests.lifetime import MAX_LIFETIME, PATIENCE
from localpuppet.node.cli.node_options import node_option
from localpuppet.node.wiring.node import NodeWiring

_JSON = click.option("--json", "as_json", is_flag=True, help="Print the replies as JSON.")


def _patience(_ctx: click.Context, _param: click.Parameter, value: str | None) -> float:
    seconds = PATIENCE if value is None else parse_duration(value, what="timeout")
    if seconds > MAX_LIFETIME:
        raise click.UsageError(f"--timeout must be at most {MAX_LIFETIME // 60}m")
    return seconds


_TIMEOUT = click.option(
    "--timeout",
    "patience",
    metavar="TIME",
    callback=_patience,
    help="Wait up to TIME for the replies, at most 5m.  [default: 20s]",
)


@click.command(
    "runonce",
    short_help="Ask each node for a run.",
    epilog="""\b
Examples:
  localpuppet runonce --node web01.example.com --node web02.example.com
  localpuppet runonce -n web01.example.com --noop

Exit codes: 0 every node accepted, 1 one refused, 69 one did not answer.
""",
)
@node_option(required=True)
@click.option("--noop", is_flag=True, help="Change nothing; show what would change.")
@click.option("--tag", "tags", multiple=True, metavar="TAG", help="Apply only what has this tag.")
@_TIMEOUT
@_JSON
@click.pass_obj
def runonce_command(
    node: NodeWiring,
    nodes: tuple[str, ...],
    noop: bool,
    tags: tuple[str, ...],
    patience: float,
    as_json: bool,
) -> int:
    """Ask each node for a run, which starts after this; its policy must allow you `runonce`."""
    from localpuppet.fleet.cli.asking import ask_nodes
    from localpuppet.fleet.requests.request import RunOnce

    args = RunOnce(noop=noop, tags=tuple(parse_tag(tag, where="--tag") for tag in tags))
    return ask_nodes(node, nodes, "runonce", args, as_json=as_json, patience=patience)


@click.command(
    "last-run",
    epilog="""\b
Examples:
  localpuppet last-run --node web01.example.com
  localpuppet last-run -n web01.example.com --json | jq '.replies[].result'

Exit codes: 0 every node answered, 1 one refused, 69 one did not answer.
""",
)
@node_option(required=True)
@_TIMEOUT
@_JSON
@click.pass_obj
def last_run_command(
    node: NodeWiring, nodes: tuple[str, ...], patience: float, as_json: bool
) -> int:
    """Ask each node for the record of its last finished run."""
    from localpuppet.fleet.cli.asking import ask_nodes
    from localpuppet.fleet.requests.request import NoArguments

    return ask_nodes(
        node, nodes, "last_run_summary", NoArguments(), as_json=as_json, patience=patience
    )
