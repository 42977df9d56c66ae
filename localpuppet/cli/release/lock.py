"""`localpuppet release lock`: what the maker of a release does."""

from pathlib import Path

import click

from localpuppet.cli import render
from localpuppet.wiring.node import NodeWiring


@click.command(
    "lock",
    short_help="Resolve every tag in a manifest and write manifest.lock.",
    epilog="""\b
Examples:
  localpuppet release lock .
  localpuppet release lock . --accept-moved   after you know who moved a tag
""",
)
@click.argument("directory", metavar="APP_DIR", type=click.Path(path_type=Path))
@click.option("--accept-moved", is_flag=True, help="Lock a tag again that is not what it was.")
@click.option("--json", "as_json", is_flag=True, help="Print the lock as JSON.")
@click.pass_obj
def lock_command(node: NodeWiring, directory: Path, accept_moved: bool, as_json: bool) -> None:
    """Resolve every tag in APP_DIR/manifest.yaml and write APP_DIR/manifest.lock."""
    from localpuppet.wiring.makers import MakerWiring
    from localpuppet.wiring.releases import ReleaseWiring

    releases = ReleaseWiring(node)
    with releases.repository("locking") as repository:
        lock = (
            MakerWiring(node, releases)
            .locker(repository)
            .lock(directory, accept_moved=accept_moved)
        )
    if as_json:
        render.emit_json(lock.to_dict())
        return
    rows = [
        (name, pin.tag, pin.commit[:12], pin.tree_sha256[:16])
        for name, pin in [*sorted(lock.modules.items()), *sorted(lock.sources.items())]
    ]
    if rows:
        render.emit(render.table(("NAME", "TAG", "COMMIT", "TREE SHA-256"), rows))
    render.emit(f"wrote {directory / 'manifest.lock'}: {len(rows)} pinned")
