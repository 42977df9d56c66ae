"""`localpuppet release lock`, `check`, `tag`, `sign` and `package`: for makers of releases."""

import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.formats.text import parse_line
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import command, flag, option, path_type
from localpuppet.node.cli.sealed_trust import require_trust, trust_option

if TYPE_CHECKING:
    from localpuppet.node.releases.author.lock_writing import PinMove
    from localpuppet.node.releases.manifest import Lock
    from localpuppet.node.runs.puppet_calls import CompiledNode, FactOverrides
    from localpuppet.node.runs.release_check import CheckedRelease


MANIFEST = "manifest.yaml"


def here() -> Path:
    """Return the work tree of the current directory: it or a parent has the manifest."""
    trees = (tree for tree in (Path(), *Path.cwd().parents) if (tree / MANIFEST).exists())
    return next(trees, Path())


def _directory_and_tag(words: tuple[str, ...]) -> tuple[Path, str]:
    if len(words) > 2:
        raise click.UsageError(f"got more than [DIR] TAG: {' '.join(words[2:])}")
    *directory, tag = words
    return Path(directory[0]) if directory else here(), tag


@command("lock", exits={1: "", 3: "", 69: "", 75: ""})
@click.argument("directory", metavar="[DIR]", default=here, type=path_type())
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
    from localpuppet.node.releases.manifest import EMPTY

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
        render.note(f"{name} is the work tree {path}: for 'try', not for a release")
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


REFUSED = InvalidInputError.exit_code


@command(
    "check",
    exits={
        0: "it can become a release",
        2: "it cannot: the message has the reason",
        3: "",
        69: "a repository is unreachable",
        75: "another process stages releases",
    },
)
@click.argument("directory", metavar="[DIR]", default=here, type=path_type())
@option(
    "--compile inputs INPUT",
    "Compile a catalog for this input with the code in DIR (repeatable).",
    multiple=True,
)
@option(
    "--facts facts FILE",
    "Compile with these facts (output of 'facter --json'), not this machine's (repeatable).",
    multiple=True,
    type=path_type(),
)
@flag("--json as_json", "Print JSON.")
@click.pass_obj
def check_command(
    node: NodeApp,
    directory: Path,
    inputs: tuple[str, ...],
    facts: tuple[Path, ...],
    as_json: bool,
) -> int:
    """Check whether a work tree can become a release.

    DIR is a clone of the repository of the release, by default the one around the current
    directory; the command changes nothing in it.

    It checks that:
      - manifest.yaml and manifest.lock agree;
      - each dependency, direct or not, is a tag that still matches the lock;
      - Puppet's parser accepts each file;
      - Hiera data is valid YAML, and each level has a file;
      - enc.yaml names only classes and parameters that exist;
      - each INPUT compiles with the facts in each FILE.

    Unused code and data, and requirements that some nodes lack, are warnings.

    Examples:
      localpuppet release check
      localpuppet --root .ci-root release check --json       in a pipeline
      localpuppet release check --compile web01.yaml --facts web01.json
    """
    if facts and not inputs:
        raise click.UsageError("--facts requires --compile")
    from localpuppet.node.runs.puppet_calls import read_facts

    maker = node.for_makers()
    checked = maker.check_release(directory)
    machines: list[FactOverrides | None] = [*map(read_facts, facts)] or [None]
    compiled = _compile(maker, directory, inputs, machines) if inputs else ()
    broken = [compiled_node for compiled_node in compiled if compiled_node.problem]
    if as_json:
        catalogs = [compiled_node.to_dict() for compiled_node in compiled]
        compiled_node = {**as_dict(checked), "catalogs": catalogs}
        render.emit_json({"schema": 1, "directory": str(directory), **compiled_node})
        return REFUSED if broken else 0
    show(checked)
    for catalog in compiled:
        what = f"{catalog.node} of {catalog.input}"
        if catalog.problem:
            render.fail(f"{render.user_text(what)}: {render.user_text(catalog.problem)}")
        else:
            count = render.counted(catalog.resources, "resource")
            render.emit(f"compiles: {render.user_text(what)}, {count}")
        for name in catalog.plain:
            render.say(f"warning: {render.user_text(what)}: {name} is not Sensitive", err=True)
    if not broken:
        render.emit(click.style("sound", fg="green"))
    return REFUSED if broken else 0


def _compile(
    maker: NodeApp,
    directory: Path,
    inputs: "Sequence[str]",
    facts: "Sequence[FactOverrides | None]",
) -> "tuple[CompiledNode, ...]":
    from localpuppet.node.runs.puppet_calls import compile_nodes

    loaded = [maker.inputs.read(name) for name in inputs]
    release, catalogs = maker.mutable.work_tree(directory), maker.catalogs()
    return compile_nodes(
        release,
        loaded,
        facts,
        compile_catalog=lambda *node: catalogs.compile(*node).resources,
        answer=maker.classifier.answer,
    )


def as_dict(checked: "CheckedRelease") -> dict[str, object]:
    """Return the JSON form."""
    return {
        "modules": {name: pin.name for name, pin in sorted(checked.lock.modules.items())},
        "sources": sorted(checked.lock.sources),
        "dependencies": list(checked.chains),
        "puppet": checked.interface.puppet,
        "classes": sorted(checked.interface.classes),
        "layers": list(checked.layers),
        "data_files": checked.data_files,
        "warnings": list(checked.warnings),
    }


def _dependencies(indirect: int) -> str:
    """Return the result for the dependencies, in words."""
    more = f"; {render.counted(indirect, 'indirect dependency')} checked" if indirect else ""
    return f"unchanged since the lock was written{more}"


def show(checked: "CheckedRelease") -> None:
    from localpuppet.node.releases.git.git_modules import Pin

    interface = checked.interface
    pinned = len(checked.lock.modules) + len(checked.lock.sources)
    tags = sum(isinstance(pin, Pin) for pin in checked.lock.pins.values())
    reached = len(checked.chains) - tags
    files = render.counted(checked.data_files, "file")
    rows = [
        ("Lock", f"agrees with the manifest: {pinned} pinned"),
        ("Dependencies", _dependencies(reached) if pinned else "none"),
        (
            "Parser",
            f"{interface.parser} reads {render.counted(len(interface.modules), 'module')},"
            f" {render.counted(len(interface.classes), 'class')}",
        ),
        ("Data", f"{files} parsed" if checked.data_files else ""),
        ("enc.yaml", f"fits, with {render.counted(len(checked.layers), 'layer')}"),
    ]
    render.emit(render.pairs(rows))
    for warning in checked.warnings:
        render.say(f"warning: {render.user_text(warning)}", err=True)


@command("tag", exits={1: "", 3: "", 69: "", 75: ""})
@click.argument("words", nargs=-1, required=True, metavar="[DIR] TAG")
@flag("--sign", "Sign the tag with your git signing key.")
@option(
    "--source NAME",
    "Make it a release of this source.  [default: the source with the URL of origin]",
)
@option("--push/--no-push", "Push the tag to origin.", default=True, show_default=True)
@option("-m --message TEXT", "The tag's message.  [default: release TAG]")
@trust_option
@flag("--json as_json", "Print JSON.")
@click.pass_obj
def tag_command(
    node: NodeApp,
    /,
    words: tuple[str, ...],
    sign: bool,
    source: str | None,
    push: bool,
    message: str | None,
    trusted: tuple[str, ...],
    as_json: bool,
) -> None:
    """Tag the current commit as a release, and push the tag.

    In DIR (default: the clone around the current directory), the work tree must be clean,
    manifest.lock committed, and 'release check' must succeed. TAG must be new, here and at origin.
    If the push fails, the command removes the tag again.

    The tag's message names the source. A node that requires signatures rejects a tag of another
    source. Each group of sealed values with a new rule, recipient or holder is shown, and asks.

    Examples:
      localpuppet release tag r2               check, tag, push to origin
      localpuppet release tag r2 --sign        with your git's user.signingkey
      localpuppet release tag r2 --sign --source web
      localpuppet release tag r2 --no-push     you push it: git push origin r2
    """
    from localpuppet.node.releases.author.tagging import (
        message_for,
        parse_release_tag,
        source_of_tag,
        tag_release,
    )
    from localpuppet.node.releases.git.work_tree import GitWorkTree

    directory, tag = _directory_and_tag(words)
    name = parse_release_tag(tag)
    text = parse_line(message, what="message") if message else f"release {name}"
    maker = node.for_makers()
    tree = GitWorkTree(directory, timeout=maker.settings.timeouts.git)
    text = message_for(text, source_of_tag(tree, maker.settings.sources, named=source, sign=sign))
    checks: list[CheckedRelease] = []

    def check() -> Sequence[str]:
        checks.append(maker.check_release(directory))
        _approve_groups(node, directory, trusted)
        return checks[0].unseen

    made = tag_release(tree, name, check=check, message=text, sign=sign, push=push)
    if as_json:
        tagged = {"tag": name, "commit": made.commit, "signed": made.signed, "pushed": push}
        render.emit_json({"schema": 1, "directory": str(directory), **tagged, **as_dict(checks[0])})
        return
    show(checks[0])
    details = [
        "signed" if made.signed else "annotated",
        "pushed to origin" if push else "not pushed",
    ]
    render.emit(
        f"{click.style('tagged', fg='green')} {name} at {made.commit[:12]}, {', '.join(details)}"
    )


def _approve_groups(node: NodeApp, directory: Path, trusted: Sequence[str]) -> None:
    """Ask about each group with a rule, recipient or holder that no verified release has.

    A holder counts although its line may open nothing: the next 'revoke' trusts the release.
    """
    from localpuppet.node.sealed.tree import SealedTree

    tree = SealedTree.on_disk(directory)
    if tree.is_empty:
        return
    trust = node.sealed_trust(directory)
    for group in tree.groups():
        require_trust(trust, group, trusted, holders=True)


@command("sign", exits={1: "", 3: "", 69: ""})
@click.argument("words", nargs=-1, required=True, metavar="[DIR] TAG")
@option("--source NAME", "Fail if TAG is a release of another source.")
@option("--push/--no-push", "Push the signature to origin.", default=True, show_default=True)
@flag("--json as_json", "Print JSON.")
@click.pass_obj
def sign_command(
    node: NodeApp, words: tuple[str, ...], source: str | None, push: bool, as_json: bool
) -> None:
    """Sign a release that another person tagged.

    The command signs TAG with your git signing key. Nodes require this if their source sets
    'signatures: 2' or more. Your signature covers the tag object: its commit, message and time. DIR
    is a clone that has the same tag as origin; any commit may be checked out.

    Examples:
      git fetch origin tag r2 && git diff r1 r2      read what you sign
      localpuppet release sign r2                    sign, and push to origin
      localpuppet release sign r2 --no-push          only sign
    """
    from localpuppet.node.releases.author.tagging import countersign, parse_release_tag
    from localpuppet.node.releases.git.work_tree import GitWorkTree

    directory, tag = _directory_and_tag(words)
    tree = GitWorkTree(directory, timeout=node.settings.timeouts.git)
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
    type=path_type(),
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
