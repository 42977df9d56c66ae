"""`localpuppet release sign`: countersign another person's release."""

from dataclasses import asdict
from pathlib import Path

import click

from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import command, flag, option


@command("sign", exits={1: "", 3: "", 69: ""})
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path))
@click.argument("tag")
@option("--source NAME", "Fail if TAG is a release of another source.")
@option("--push/--no-push", "Push the signature to origin.", default=True, show_default=True)
@flag("--json as_json", "Print JSON.")
@click.pass_obj
def sign_command(
    node: NodeApp, directory: Path, tag: str, source: str | None, push: bool, as_json: bool
) -> None:
    """Sign a release that another person tagged.

    The command signs TAG with your git signing key. Nodes require this if their source sets
    'signatures: 2' or more. Your signature covers the tag object: its commit, message and time. DIR
    is a clone that has the same tag as origin; any commit may be checked out.

    Examples:
      git fetch origin tag r2 && git diff r1 r2      read what you sign
      localpuppet release sign . r2                  sign, and push to origin
      localpuppet release sign . r2 --no-push        only sign
    """
    from localpuppet.node.releases.author.tagging import countersign, parse_release_tag
    from localpuppet.node.releases.git.work_tree import GitWorkTree

    tree = GitWorkTree(directory, timeout=node.settings.git_timeout)
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
