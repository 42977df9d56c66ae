"""`localpuppet try`: run an unreleased work tree."""

from pathlib import Path

import click

from localpuppet.base.formats.times import parse_duration
from localpuppet.node.cli import apply
from localpuppet.node.wiring.node import NodeWiring
from localpuppet.node.wiring.state import open_attempts


@click.command(
    "try",
    cls=apply.RestCommand,
    short_help="Run a work tree as it is, before it is a release.",
    epilog="""\b
Examples:
  localpuppet try --noop              this work tree: what would change
  localpuppet try ../control --noop
  localpuppet try --input web01.yaml --noop
  localpuppet try -- --debug          options for Puppet

The next 'apply' goes back to the release that the input names: 'disable' keeps it away.
""",
)
@click.argument(
    "directory",
    metavar="[DIR]",
    default=".",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
)
@click.option("--noop", is_flag=True, help="Change nothing; show what would change.")
@click.option(
    "--input",
    "source",
    metavar="INPUT",
    help="ENC data for it: a file, '-' or https://…  [default: the node's, if it has one]",
)
@click.option("-v", "--verbose", is_flag=True, help="Show the whole command on a terminal, too.")
@click.option("--timeout", metavar="TIME", help="End Puppet after this time (90, 30m, 1h30m).")
@click.option(
    "--detailed-exitcodes",
    is_flag=True,
    help="Exit as Puppet does: 0 unchanged, 2 changed, 4 failed, 6 changed and failed.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, and nothing else.")
@click.pass_context
def try_command(
    ctx: click.Context,
    /,
    directory: Path,
    source: str | None,
    timeout: str | None,
    **flags: bool,
) -> int:
    """Run the work tree DIR (default: this one) on this node, uncommitted changes included.

    Its lock pins its modules. The run is supervised and recorded, but the work tree does not count
    as a release: a rollback does not return to it, and it does not make other nodes run. The
    release in the input is ignored.
    """
    from localpuppet.node.runs.options import RunOptions
    from localpuppet.node.wiring.run import RunWiring

    node: NodeWiring = ctx.obj
    seconds = None if timeout is None else parse_duration(timeout, what="timeout")
    options = RunOptions(
        noop=flags["noop"],
        tags=None,
        extra=apply.rest(ctx),
        timeout=seconds or node.settings.run_timeout,
        user=apply.user(),
        cause="try",
    )
    shown = apply.RunDisplay(
        verbose=flags["verbose"],
        as_json=flags["as_json"],
        detach=False,
        detailed=flags["detailed_exitcodes"],
    )
    wiring = RunWiring(node)
    with open_attempts(node).noted(options, source=source or str(node.settings.input)) as named:
        prepared = wiring.trial().prepare(options, directory=directory, source=source, named=named)
        status = apply.supervise(node, wiring, prepared, shown)
    return apply.tell(status, shown)
