"""`localpuppet release package`: a release as a .deb, an .rpm or a release pack."""

from pathlib import Path

import click

from localpuppet.base.formats.names import ReleasePath
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import command, flag, option


@command("package", exits={1: "", 3: "", 69: "", 75: ""})
@click.argument("app", metavar="[RELEASE]", required=False)
@option(
    "--format form",
    "deb for dpkg, rpm for rpm, tar for a release pack.",
    type=click.Choice(["deb", "rpm", "tar"]),
    required=True,
)
@option(
    "-o --output DIR",
    "Write the file to DIR.  [default: the current directory]",
    type=click.Path(path_type=Path),
    default=Path(),
)
@option("--version V", "The package's version.  [default: from the tag]")
@flag("--json as_json", "Print JSON.")
@click.pass_obj
def package_command(
    node: NodeApp, app: str | None, form: str, output: Path, version: str | None, as_json: bool
) -> None:
    """Build a package of a release: deb, rpm or tar.

    RELEASE is SOURCE/tags/TAG; the default is the release that the input names. If it is not on
    this node, localpuppet fetches and verifies it first.

    With the package, a node needs no git. Installing the package applies nothing. The same release
    always gives the same bytes.

    Examples:
      localpuppet release package --format deb               the input's release
      localpuppet release package foo/tags/r2 --format rpm -o dist
      localpuppet release package foo/tags/r2 --format tar   for 'stage --pack'
    """
    from localpuppet.node.releases.packages.tools import Packager

    own = node.settings.input
    path = ReleasePath.parse(app, where="RELEASE") if app else node.inputs.app(own)
    with node.repository(f"packaging {path}") as repository:
        staged = node.package_staging(repository).stage(path)
        packager = Packager(
            staging=node.staging(repository),
            store=node.store,
            repository=repository,
            tools=node.package_tools,
            directories=node.settings.packages,
        )
        built = packager.build(staged, form=form, directory=output, version=version)
    node.documents.remember()
    if as_json:
        render.emit_json(built.to_dict())
        return
    render.emit(f"built {built.file} (sha256 {built.sha256})")
