"""`localpuppet release check`: is a working copy fit to be a release?"""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from localpuppet.cli import render
from localpuppet.wiring.node import NodeWiring

if TYPE_CHECKING:
    from localpuppet.releases.making.checking import Checked


@click.command(
    "check",
    short_help="Check the release in a working copy.",
    epilog="""\b
Examples:
  localpuppet release check .
  localpuppet --root .ci-root release check . --json     in a pipeline

Exits 0 when all is well, 2 when the release is refused, 3 when a tag moved or bytes or a
signature are wrong, 69 when a repository cannot be had, 75 while another process stages.
""",
)
@click.argument("directory", metavar="APP_DIR", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def check_command(node: NodeWiring, directory: Path, as_json: bool) -> None:
    """Check the release in the working copy APP_DIR; nothing in it is changed.

    Manifest and lock agree; every dependency, and theirs, is a tag that is still what was locked;
    Puppet parses every file; enc.yaml fits the classes and parameters that are there.
    """
    from localpuppet.wiring.makers import MakerWiring
    from localpuppet.wiring.releases import ReleaseWiring

    releases = ReleaseWiring(node)
    with releases.repository(f"checking {directory}") as repository:
        checked = MakerWiring(node, releases).checker(repository).check(directory)
    if as_json:
        render.emit_json({"schema": 1, "directory": str(directory), **as_dict(checked)})
        return
    show(checked)
    render.emit(click.style("sound", fg="green"))


def as_dict(checked: "Checked") -> dict[str, object]:
    """Return what programs get."""
    return {
        "modules": {name: pin.name for name, pin in sorted(checked.lock.modules.items())},
        "sources": sorted(checked.lock.sources),
        "dependencies": list(checked.chains),
        "puppet": checked.interface.puppet,
        "classes": sorted(checked.interface.classes),
        "layers": list(checked.layers),
        "warnings": list(checked.warnings),
    }


def show(checked: "Checked") -> None:
    """Show what was checked."""
    interface = checked.interface
    pinned = len(checked.lock.modules) + len(checked.lock.sources)
    reached = len(checked.chains) - pinned
    rows = [
        ("Lock", f"agrees with the manifest: {pinned} pinned"),
        ("Dependencies", f"all tags, unmoved; {reached} more below them" if pinned else "none"),
        (
            "Parser",
            f"Puppet {interface.puppet} reads {render.counted(len(interface.modules), 'module')},"
            f" {render.counted(len(interface.classes), 'class')}",
        ),
        ("enc.yaml", f"fits, with {render.counted(len(checked.layers), 'layer')}"),
    ]
    render.emit(render.pairs(rows))
    for warning in checked.warnings:
        render.say(f"warning: {render.user_text(warning)}", err=True)
