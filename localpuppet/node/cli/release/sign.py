"""`localpuppet release sign`: countersign another person's release."""

from dataclasses import asdict
from pathlib import Path

import click

from localpuppet.node.cli import render
from localpuppet.node.wiring.node import NodeWiring


@click.command(
    "sign",
    short_help="Sign a release that another person has tagged.",
    epilog="""\b
Examples:
  git fetch origin tag r2 && git diff r1 r2      look at what you sign
  localpuppet release sign . r2                  sign, push to origin
  localpuppet release sign . r2 --no-push        sign here only
""",
)
@click.argument("directory", metavar="APP_DIR", type=click.Path(path_type=Path))
@click.argument("tag")
@click.option("--source", metavar="NAME", help="The source that it must be a release of.")
@click.option("--push/--no-push", default=True, show_default=True, help="Push it to origin.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def sign_command(
    node: NodeWiring, directory: Path, tag: str, source: str | None, push: bool, as_json: bool
) -> None:
    """Countersign the release TAG of another person with your git signing key.

    Nodes require this if their source sets 'signatures: 2' or more. Your signature covers the tag
    object: its commit, its message, its time. APP_DIR is a clone that has the same tag as origin;
    its checked-out commit does not matter.
    """
    from localpuppet.node.releases.making.countersigning import countersign
    from localpuppet.node.releases.making.tagging import parse_release_tag
    from localpuppet.node.wiring.release_making import ReleaseMaking

    tree = ReleaseMaking(node).work_tree(directory)
    made = countersign(tree, parse_release_tag(tag), source=source, push=push)
    if as_json:
        render.emit_json({"schema": 1, "directory": str(directory), **asdict(made), "pushed": push})
        return
    where = "pushed to origin" if push else "not pushed"
    render.emit(
        f"{click.style('signed', fg='green')} {made.tag} of {made.source} at {made.commit[:12]},"
        f" {where}"
    )
    if not push:
        render.emit(f"git push origin {made.ref}")
