"""`localpuppet try`: run an unreleased work tree."""

from pathlib import Path

import click

from localpuppet.base.formats.times import parse_duration
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import apply
from localpuppet.node.cli.command import command, option


@command("try", apply.RestCommand, exits={1: "", 3: "", 69: "", 75: ""})
@click.argument(
    "directory",
    metavar="[DIR]",
    default=".",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
)
@apply.noop_option
@option(
    "--input source INPUT",
    "Take classes and parameters from this input: a file, '-' or https://…  "
    "[default: the node's input, if it has one]",
)
@apply.timeout_option
@apply.verbose_option
@apply.exit_codes_option
@apply.json_option
@click.pass_context
def try_command(
    ctx: click.Context,
    /,
    directory: Path,
    source: str | None,
    timeout: str | None,
    **flags: bool,
) -> int:
    """Run an unreleased work tree on this node.

    DIR (default: the current directory) is the work tree; uncommitted changes count. Its
    manifest.lock pins its modules. localpuppet ignores the release that the input names.

    localpuppet supervises and records the run, but a work tree is not a release: 'rollback' never
    returns to it, and the run triggers no other node. The next 'apply' applies the release of the
    input again; 'disable' prevents that.

    Examples:
      localpuppet try --noop              show what this work tree would change
      localpuppet try ../control --noop
      localpuppet try --input web01.yaml --noop
      localpuppet try -- --debug          options for Puppet
    """
    from localpuppet.node.runs.options import RunOptions

    node: NodeApp = ctx.obj
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
    with node.attempts.noted(options, source=source or str(node.settings.input)) as named:
        prepared = node.trial().prepare(options, directory=directory, source=source, named=named)
        status = apply.supervise(node, prepared, shown)
    return apply.tell(status, shown)
