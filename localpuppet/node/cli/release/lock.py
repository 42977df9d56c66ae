"""`localpuppet release lock`: write a release's lock."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import command, flag, option

if TYPE_CHECKING:
    from localpuppet.node.releases.author.lock_writing import PinMove
    from localpuppet.node.releases.manifest import Lock

MANIFEST = "manifest.yaml"


@command("lock", exits={1: "", 3: "", 69: "", 75: ""})
@click.argument("directory", metavar="[DIR]", default=".", type=click.Path(path_type=Path))
@click.argument("names", metavar="[MODULE]...", nargs=-1)
@flag("--update", "Resolve branches and version ranges again.")
@flag("--outdated", "List possible updates; write nothing.")
@flag("--accept-moved", "If a tag moved, lock its new commit.")
@option(
    "--path paths NAME=DIR",
    "Take module NAME from the work tree DIR, for 'try' (repeatable).  "
    "A lock without this option pins it again.",
    multiple=True,
)
@flag("--json as_json", "Print JSON.")
@click.pass_obj
def lock_command(
    node: NodeApp,
    /,
    directory: Path,
    names: tuple[str, ...],
    paths: tuple[str, ...],
    update: bool,
    outdated: bool,
    **options: bool,
) -> None:
    """Pin every module: write manifest.lock.

    The command resolves each name in DIR/manifest.yaml: a tag to its commit, a branch to its
    current commit, a version range to the newest version in it. With MODULE, it resolves only these
    modules.

    Locked entries stay until --update. If the bytes of a locked tag or version changed, the command
    fails.

    Examples:
      localpuppet release lock                keep what is locked, add the rest
      localpuppet release lock --update       newest versions, current branches
      localpuppet release lock . stdlib --update
      localpuppet release lock --outdated     list what has a newer version
      localpuppet release lock --accept-moved
      localpuppet release lock --path ntp=../ntp
    """
    from localpuppet.node.releases.author.lock_writing import moves, write_lock
    from localpuppet.node.releases.author.lock_writing import outdated as find_outdated
    from localpuppet.node.releases.release_files import EMPTY

    if (update or outdated) and not (directory / MANIFEST).exists() and not directory.is_dir():
        directory, names = Path(), (str(directory), *names)  # 'lock --update stdlib'
    if names and not update:
        raise click.UsageError("names of modules go with --update")
    if update and outdated:
        raise click.UsageError("--update moves, --outdated only looks: choose one")
    maker = node.for_makers()
    with maker.repository("locking") as repository:
        old = maker.files.lock(directory) or EMPTY
        if outdated:
            _show_outdated(
                find_outdated(old, maker.supply.modules(repository).source),
                as_json=options["as_json"],
            )
            return
        lock = write_lock(
            directory,
            supply=maker.supply,
            repository=repository,
            accept_moved=options["accept_moved"],
            update=names if update else None,
            paths=_work_trees(paths),
        )
    for name, path in lock.paths.items():
        render.QuietObserver().note(f"{name} is the work tree {path}: for 'try', not for a release")
    changed = moves(old, lock)
    if options["as_json"]:
        render.emit_json({**lock.to_dict(), "changes": [move.to_dict() for move in changed]})
        return
    _show(lock, changed, directory, update=update)


def _work_trees(texts: Sequence[str]) -> dict[str, Path]:
    trees = {}
    for text in texts:
        name, equals, path = text.partition("=")
        if not equals or not Path(path).is_dir():
            raise click.UsageError("--path requires NAME=DIR with an existing directory")
        trees[name] = Path(os.path.abspath(path))  # noqa: PTH100 - the path as its user knows it
    return trees


def _show(lock: "Lock", changed: "tuple[PinMove, ...]", directory: Path, *, update: bool) -> None:
    rows = [
        (name, pin.name, pin.short, pin.tree_sha256[:16])
        for name, pin in [*sorted(lock.modules.items()), *sorted(lock.sources.items())]
    ]
    if update:
        _show_moves(changed, "nothing moved")
    elif rows:
        render.emit(render.table(("NAME", "AT", "PINNED", "TREE SHA-256"), rows))
    render.emit(f"wrote {directory / 'manifest.lock'}: {len(rows)} pinned")


def _show_outdated(moves: "tuple[PinMove, ...]", *, as_json: bool) -> None:
    if as_json:
        render.emit_json({"schema": 1, "outdated": [move.to_dict() for move in moves]})
        return
    _show_moves(moves, "everything is the newest that there is")


def _show_moves(moves: "tuple[PinMove, ...]", nothing: str) -> None:
    if not moves:
        render.emit(nothing)
        return
    rows = [(move.name, move.old or "-", "->", move.new or "-") for move in moves]
    render.emit(render.table(("NAME", "OLD", "", "NEW"), rows))
    for move in moves:
        if move.changes:
            render.emit(f"{move.name}: {render.user_text(move.changes)}")
