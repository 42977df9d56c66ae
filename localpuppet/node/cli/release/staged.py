"""`localpuppet stage`, `release list`, `verify`, `diff` and `gc`: the releases on this node."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from localpuppet.base.errors import IntegrityError, InvalidInputError
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.formats.text import one_line
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import command, flag, option, path_type
from localpuppet.node.cli.node_setup import complete_release
from localpuppet.node.releases.comparison import NameDifference
from localpuppet.node.releases.release_records import StagedRelease
from localpuppet.node.releases.staging import ReleaseStaging

if TYPE_CHECKING:
    from collections.abc import Sequence

    from localpuppet.node.releases.release import Release


@command("stage", exits={1: "", 3: "", 69: "", 75: ""})
@click.argument("app", metavar="[RELEASE]", required=False, shell_complete=complete_release)
@flag("--refresh", "Compare the tag with the repository; fail if it moved.")
@flag("--accept-moved", "Replace the release if its tag moved to other code.")
@option(
    "--pack FILE", "Take the release from this release pack, without network.", type=path_type()
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
    reader = None if no_parse else node.reader
    approve = None if reader is None else reader.read_composed
    with node.repository(f"staging {path}") as repository:
        staging = node.package_staging(repository, approve, accept_moved=accept_moved)
        if pack is not None:
            staged = staging.stage_pack(path, pack, accept_moved=accept_moved)
        else:
            staged = staging.stage(path, refresh=refresh, accept_moved=accept_moved)
    if reader is not None and (left_out := reader.read_staged(node.resolve(staged.release))):
        render.note(f"warning: {left_out}")
    if repaired := staging.staging.repaired:
        render.note(f"warning: {staged.release} was repaired: {repaired}")
    node.documents.remember()
    opened = node.open_sealed_groups(node.resolve(staged.release))
    if as_json:
        render.emit_json(staged.to_dict())
        return
    sealed = f", opens {', '.join(opened)}" if opened else ""
    render.emit(
        f"staged {staged.release}: commit {staged.pin.commit[:12]},"
        f" {render.counted(len(staged.modules), 'module')},"
        f" {render.counted(len(staged.sources), 'source')}{sealed}"
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


@command("list", exits={1: ""})
@flag("--json as_json", "Print JSON.")
@click.pass_obj
def list_command(node: NodeApp, as_json: bool) -> None:
    """List the releases on this node.

    Examples:
      localpuppet release list
      localpuppet release list --json | jq -r '.releases[].release'
    """
    all_staged = node.staging(node.git()).records.all()
    applied = _applied(node)
    if as_json:
        rows_of = [
            {**staged.to_dict(), "applied": applied.get(staged.release)} for staged in all_staged
        ]
        render.emit_json({"schema": 1, "releases": rows_of})
        return
    if not all_staged:
        render.emit("nothing is staged; 'localpuppet stage' fetches what the input names")
        return
    rows = [
        (
            staged.release,
            staged.pin.commit[:12],
            staged.pin.tree_sha256[:16],
            str(len(staged.modules)),
            str(len(staged.sources)),
            applied.get(staged.release) or "",
        )
        for staged in all_staged
    ]
    render.emit(
        render.table(
            ("RELEASE", "COMMIT", "TREE SHA-256", "MODULES", "SOURCES", "APPLIED"),
            rows,
            spare=("TREE SHA-256", "SOURCES"),
        )
    )


def _applied(node: NodeApp) -> dict[str, str]:
    """Return what the list says about the releases that were applied: one is the current one."""
    from localpuppet.node.runs.rollback_service import RollbackService

    ledger = node.ledger
    going_back = RollbackService(node.good_runs, ledger)
    marks: dict[str, str] = {}
    rollback = node.rollback_in_force()
    newest = rollback or node.good_runs.newest(lambda _, app: app.is_tag)
    for source in ledger.sources():
        rolled_back = rollback is not None and rollback.release.source == source
        current = rollback.release if rollback and rolled_back else ledger.current(source)
        before = going_back.previous(current) if current else None
        if newest is not None and newest.release.source != source:
            marks.update({current: f"last of {source}"} if current else {})
            continue
        marks.update({before: "previous"} if before else {})
        marks.update({current: "current"} if current else {})
    return marks


@command(
    "verify",
    exits={0: "nothing changed", 3: "something changed: 'localpuppet stage' repairs it", 75: ""},
)
@click.argument("app", metavar="[RELEASE]", required=False, shell_complete=complete_release)
@flag("--all everything", "Verify every release on this node.")
@flag("--quick", "Compare sizes, times and modes, not contents.")
@flag("--json as_json", "Print JSON.")
@click.pass_obj
def verify_command(
    node: NodeApp, app: str | None, everything: bool, quick: bool, as_json: bool
) -> None:
    """Compare a release on this node with its lock.

    RELEASE is SOURCE/tags/TAG; the default is the release that the input names. The command hashes
    every byte of it.

    Examples:
      localpuppet release verify                     the release in the input
      localpuppet release verify web/tags/r1
      localpuppet release verify --all --quick       sizes, times and modes only
    """
    staging = node.staging(node.git())
    if everything:
        releases_to_verify = staging.records.all()
    else:
        own = node.settings.input
        path = ReleasePath.parse(app, where="RELEASE") if app else node.inputs.app(own)
        releases_to_verify = [_require_staged(staging, path)]
    problems = staging.verify(releases_to_verify, full=not quick)
    if not (everything or problems):
        _require_staged(staging, path)
    broken = {name: list(texts) for name, texts in problems.items() if texts}
    if as_json:
        render.emit_json({"schema": 1, "verified": sorted(problems), "problems": broken})
    else:
        for release in problems:
            word, color = ("broken", "red") if release in broken else ("sound", "green")
            render.emit(f"{click.style(word, fg=color)}  {release}")
    if broken:
        first = next(iter(broken.values()))[0]
        count = sum(map(len, broken.values()))
        raise IntegrityError(
            f"{first}" + (f" and {count - 1} more" if count > 1 else ""),
            where=next(iter(broken)),
            hint="'localpuppet stage' repairs it; find out who changed it",
        )


def _require_staged(staging: ReleaseStaging, path: ReleasePath) -> StagedRelease:
    staged = staging.records.of(path)
    if staged is None:
        raise InvalidInputError(f"{path} is not staged here", hint="'localpuppet stage' does it")
    return staged


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


SHOWN = 40
NEWLINE = r"\n"  # what shows the end of a line inside of a value


_LINES = {"-": "red", "+": "green", "@": "cyan"}


@command("diff", exits={0: "success, with or without differences", 1: "", 3: "", 69: "", 75: ""})
@click.argument("before", shell_complete=complete_release)
@click.argument("after", shell_complete=complete_release)
@option("--catalog INPUT", "Also compare compiled catalogs of this input.")
@flag("--text as_text", "Also show text files as unified diffs.")
@flag("--json as_json", "Print JSON.")
@click.pass_obj
def diff_command(
    node: NodeApp, before: str, after: str, catalog: str | None, as_text: bool, as_json: bool
) -> None:
    """Compare two releases: pins, files and resources.

    BEFORE and AFTER are SOURCE/tags/TAG. If one is not on this node, localpuppet fetches and
    verifies it first. Catalogs are compiled with this node's facts; nothing is applied.

    The files are those of the release, its single modules and its collections. --text shows files
    of up to 256 KiB and 5,000 lines, and 1 MiB of diffs in total; it only names other files.

    Examples:
      localpuppet release diff web/tags/r1 web/tags/r2
      localpuppet release diff web/tags/r1 web/tags/r2 --text
      localpuppet release diff web/tags/r1 web/tags/r2 --catalog input.yaml --json
    """
    from localpuppet.node.releases.comparison import differences as compared
    from localpuppet.node.releases.comparison import texts as texts_of

    paths = [ReleasePath.parse(name, where="RELEASE") for name in (before, after)]
    releases = [node.provider.provide(path) for path in paths]
    differences = compared(*releases, reader=node.files)
    if catalog is not None:
        differences["resources"] = _resources(node, catalog, releases)
    first, second = releases
    texts = texts_of(first, second, differences["files"].names) if as_text else {}
    if as_json:
        as_dicts = {title: difference.to_dict() for title, difference in differences.items()}
        if as_text:
            as_dicts["texts"] = texts
        render.emit_json({"schema": 1, "before": before, "after": after, **as_dicts})
        return
    for title, difference in differences.items():
        render.emit(_text(title, difference))
    for name, diff in texts.items():
        for line in (diff if diff.startswith("--- ") else f"{name}: {diff}").split("\n"):
            render.emit(click.style(render.user_text(line), fg=_LINES.get(line[:1])))


def _resources(node: NodeApp, name: str, releases: "Sequence[Release]") -> NameDifference:
    """Compare an input's catalogs of both releases; note what only one of them accepts."""
    from localpuppet.node.candidates import named_difference
    from localpuppet.node.enc.input import node_document
    from localpuppet.node.preview.difference import difference
    from localpuppet.node.runs.interface import only_in_other

    read, reader = node.inputs.read(name), node.reader
    compiler = node.catalogs(asks=True)
    interfaces = [reader.interface_of(release) for release in releases]
    catalogs = []
    for release, own, other in zip(releases, interfaces, reversed(interfaces), strict=True):
        document = node_document(read, release.enc, answer=None)
        document, left = only_in_other(document, own, other)
        if left:
            render.note(f"{release.name} has no {', '.join(left)}: compiled without")
        catalogs.append(compiler.compile(release, document))
    return named_difference(difference(*catalogs))


def _text(title: str, difference: NameDifference) -> str:
    lines = [click.style(title, bold=True)]
    rows = [click.style(f"  - {one_line(name)}", fg="red") for name in difference.removed]
    rows += [click.style(f"  + {one_line(name)}", fg="green") for name in difference.added]
    rows += [
        click.style(f"  ~ {one_line(name)}", fg="yellow")
        + "  "
        + one_line(text.replace("\n", NEWLINE))
        for name, text in difference.changed.items()
    ]
    lines += rows[:SHOWN]
    if len(rows) > SHOWN:
        lines.append(f"  and {len(rows) - SHOWN} more; --json shows all")
    if not rows:
        lines.append("  the same")
    return "\n".join(lines)
