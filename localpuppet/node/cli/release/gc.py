"""`localpuppet release gc`: remove unneeded releases."""

import click

from localpuppet.node.cli import render
from localpuppet.node.wiring.node import NodeWiring


@click.command(
    "gc",
    epilog="""\b
Examples:
  localpuppet release gc --dry-run       what would go
  localpuppet release gc
""",
)
@click.option("--dry-run", is_flag=True, help="Only show what would go.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def gc_command(node: NodeWiring, dry_run: bool, as_json: bool) -> None:
    """Remove staged releases and trees that are no longer needed.

    gc keeps the releases that run, that input.yaml and inputs/ name, that were assigned or rolled
    back to, and the last good releases of each source (keep.releases: 5). For gc.keep_staged (14
    days) it also keeps unapplied releases, the modules of work trees and trunk, archives of the
    Forge, and mirrors of single modules.
    """
    from localpuppet.node.wiring.staged_releases import remove_unneeded

    removal = remove_unneeded(node, dry_run=dry_run)
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
