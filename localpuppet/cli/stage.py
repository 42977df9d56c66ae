"""`localpuppet stage`: step one of a release, its code on the node."""

import click

from localpuppet.cli import render
from localpuppet.cli.wiring import Parts
from localpuppet.model.names import ReleasePath


@click.command(
    "stage",
    epilog="""\b
Examples:
  localpuppet stage                  what input.yaml names
  localpuppet stage foo/tags/r2      another release, before the input names it
""",
)
@click.argument("app", required=False)
@click.option("--refresh", is_flag=True, help="Ask the repository again; a moved tag is an alarm.")
@click.option("--accept-moved", is_flag=True, help="Take a tag that has moved as it is now.")
@click.option("--json", "as_json", is_flag=True, help="Print what is staged as JSON.")
@click.pass_obj
def stage_command(
    parts: Parts, app: str | None, refresh: bool, accept_moved: bool, as_json: bool
) -> None:
    """Bring APP (default: the input's) onto this node and verify it; nothing is applied.

    Puppet's own parser reads it once: inputs are held against its classes and parameters later.

    What is here and sound already needs no network. Exits 3 when a tag moved, or a signature or
    digest is wrong; nothing is switched then. Exits 2 when Puppet cannot parse a file of it.
    """
    from localpuppet.cli.fitting import read_staged

    path = ReleasePath.parse(app, where="APP") if app else parts.input_app()
    with parts.git_progress(f"staging {path}") as repository:
        staged = parts.staging(repository).stage(path, refresh=refresh, accept_moved=accept_moved)
    left_out = read_staged(parts, staged.app)
    if left_out:
        render.Silent().note(f"warning: {left_out}")
    parts.documents.remember()
    if as_json:
        render.emit_json(staged.to_dict())
        return
    render.emit(
        f"staged {staged.app}: commit {staged.pin.commit[:12]},"
        f" {len(staged.modules)} modules, {len(staged.sources)} sources"
    )
