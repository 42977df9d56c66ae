"""`localpuppet release gc`: remove unneeded releases."""

import click

from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import command, flag


@command("gc", exits={1: "", 75: ""})
@flag("--dry-run", "Show what would change; change nothing.")
@flag("--json as_json", "Print JSON.")
@click.pass_obj
def gc_command(node: NodeApp, dry_run: bool, as_json: bool) -> None:
    """Remove releases that this node no longer needs.

    gc keeps running releases, those that input.yaml and inputs/ name, assigned ones, targets of a
    rollback, and the last good releases of each source (keep.releases: 5).

    For gc.keep_staged (14 days), it also keeps releases that were never applied, the modules of
    work trees and trunk, archives of the Forge, and mirrors of single modules.

    Examples:
      localpuppet release gc --dry-run       list what gc would remove
      localpuppet release gc
    """
    removal = node.garbage().collect(now=node.clock.now().timestamp(), dry_run=dry_run)
    if as_json:
        render.emit_json(
            {
                "schema": 1,
                "dry_run": dry_run,
                "releases": list(removal.releases),
                "compositions": list(removal.compositions),
                "trees": list(removal.trees),
                "archives": [path.name for path in removal.archives],
                "mirrors": [path.name for path in removal.mirrors],
                "remaining": list(removal.remaining),
            }
        )
        return
    verb = "would remove" if dry_run else "removed"
    for app in removal.releases:
        render.emit(f"{verb} {app}")
    trees = render.counted(len(removal.trees), "tree")
    fetched = (("archive", removal.archives), ("mirror", removal.mirrors))
    trees += "".join(f", {render.counted(len(gone), what)}" for what, gone in fetched if gone)
    remaining = len(removal.remaining)
    stay = "stays" if remaining == 1 else "stay"
    render.emit(f"{verb} {trees}; {render.counted(remaining, 'release')} {stay}")
