"""`localpuppet release package`: a release as a .deb, an .rpm or a release pack."""

from pathlib import Path

import click

from localpuppet.base.formats.names import ReleasePath
from localpuppet.node.cli import render
from localpuppet.node.wiring.inputs import NodeInputs
from localpuppet.node.wiring.node import NodeWiring


@click.command(
    "package",
    short_help="Build a package of a release: deb, rpm or tar.",
    epilog="""\b
Examples:
  localpuppet release package --format deb             what input.yaml names
  localpuppet release package foo/tags/r2 --format rpm -o dist
  localpuppet release package foo/tags/r2 --format tar   for 'stage --pack'
""",
)
@click.argument("app", required=False)
@click.option(
    "--format",
    "form",
    type=click.Choice(["deb", "rpm", "tar"]),
    required=True,
    help="For dpkg, for rpm, or a release pack.",
)
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    type=click.Path(path_type=Path),
    default=Path(),
    help="Where to put the file.  [default: here]",
)
@click.option("--version", metavar="V", help="The package's version.  [default: from the tag]")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def package_command(
    node: NodeWiring, app: str | None, form: str, output: Path, version: str | None, as_json: bool
) -> None:
    """Build a package of APP (default: the input's); stage it first if necessary.

    The same release gives the same bytes. The package has everything that a node needs without git;
    installing it applies nothing.
    """
    from localpuppet.node.wiring.staged_releases import build_package

    own = node.settings.input
    path = ReleasePath.parse(app, where="APP") if app else NodeInputs(node).reader.app(own)
    built = build_package(node, path, form=form, directory=output, version=version)
    node.documents.remember()
    if as_json:
        render.emit_json(built.to_dict())
        return
    render.emit(f"built {built.file} (sha256 {built.sha256})")
