"""`localpuppet stage`: bring a release's code onto the node."""

from pathlib import Path

import click

from localpuppet.base.formats.names import ReleasePath
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import command, flag, option
from localpuppet.node.cli.completion import complete_release


@command("stage", exits={1: "", 3: "", 69: "", 75: ""})
@click.argument("app", metavar="[RELEASE]", required=False, shell_complete=complete_release)
@flag("--refresh", "Compare the tag with the repository; fail if it moved.")
@flag("--accept-moved", "Replace the release if its tag moved to other code.")
@option(
    "--pack FILE",
    "Take the release from this release pack, without network.",
    type=click.Path(path_type=Path),
)
@flag("--no-parse", "Do not run Puppet's parser: the first apply does.")
@flag("--json as_json", "Print the staged release as JSON.")
@click.pass_obj
def stage_command(
    node: NodeApp,
    app: str | None,
    refresh: bool,
    accept_moved: bool,
    pack: Path | None,
    no_parse: bool,
    as_json: bool,
) -> None:
    """Fetch and verify a release; apply nothing.

    RELEASE is SOURCE/tags/TAG; the default is the release that the input names. It comes from git
    if localpuppet.yaml declares the source, else from an installed package. A verified release on
    this node needs no network.

    Puppet's parser reads the release once, so that 'check' and 'apply' can compare inputs with its
    classes. If a check fails, the release is not staged.

    Examples:
      localpuppet stage                  the release that input.yaml names
      localpuppet stage foo/tags/r2      another one, before the input names it
      localpuppet stage foo/tags/r2 --pack localpuppet-release-foo-r2-2.tar.gz
    """
    own = node.settings.input
    path = ReleasePath.parse(app, where="RELEASE") if app else node.inputs.app(own)
    if not path.is_tag and pack is None:
        _stage_mutable(node, path, as_json=as_json)
        return
    reader = approve = None
    if not no_parse:
        from localpuppet.node.runs.provider import ParseBeforeSwitch

        reader = node.reader
        approve = ParseBeforeSwitch(reader)
    with node.repository(f"staging {path}") as repository:
        importer = node.package_staging(repository, approve, accept_moved=accept_moved)
        if pack is not None:
            staged = importer.stage_pack(path, pack, accept_moved=accept_moved)
        else:
            staged = importer.stage(path, refresh=refresh, accept_moved=accept_moved)
    if reader is not None and approve is not None and not approve.given:
        left_out = reader.read_staged(node.resolve(staged.release))
        if left_out:
            render.QuietObserver().note(f"warning: {left_out}")
    if importer.repaired:
        render.QuietObserver().note(f"warning: {staged.release} was repaired: {importer.repaired}")
    node.documents.remember()
    if as_json:
        render.emit_json(staged.to_dict())
        return
    render.emit(
        f"staged {staged.release}: commit {staged.pin.commit[:12]},"
        f" {render.counted(len(staged.modules), 'module')},"
        f" {render.counted(len(staged.sources), 'source')}"
    )


def _stage_mutable(node: NodeApp, path: ReleasePath, *, as_json: bool) -> None:
    """Stage the current commit of a branch, or the modules of the directory `trunk`."""
    commit = ""
    if node.mutable.is_branch(path):
        branch, lock = node.mutable.stage_branch(path)
        commit = branch.commit
    else:
        lock = node.mutable.stage_trunk(path)
    node.resolve(path)
    if as_json:
        members = {"commit": commit} if commit else {}
        render.emit_json({"schema": 1, "release": path, **members, "modules": lock.trees})
        return
    count = render.counted(len(lock.modules), "module")
    if commit:
        render.emit(f"staged {path}: commit {commit[:12]} for now, {count}")
    else:
        render.emit(f"staged {count} of the lock of {path}, which is used as it is")
