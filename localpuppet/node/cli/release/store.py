"""`localpuppet release list` and `verify`: the staged releases of this node."""

import click

from localpuppet.base.errors import IntegrityError, InvalidInputError
from localpuppet.base.formats.names import ReleasePath
from localpuppet.node.app import NodeApp
from localpuppet.node.cli import render
from localpuppet.node.cli.command import command, flag
from localpuppet.node.cli.completion import complete_release
from localpuppet.node.releases.ledger import Ledger
from localpuppet.node.releases.staged import StagedRelease
from localpuppet.node.releases.staging import ReleaseStaging


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
    """Return the current release of each source, and the target of a rollback."""
    from localpuppet.node.runs.rollback_service import RollbackService

    ledger = Ledger(node.settings.state)
    going_back = RollbackService(node.good_runs, ledger)
    marks: dict[str, str] = {}
    rollback = node.rollback_in_force()
    for source in ledger.sources():
        rolled_back = rollback is not None and rollback.release.source == source
        current = rollback.release if rollback and rolled_back else ledger.current(source)
        before = going_back.previous(current) if current else None
        marks.update({before: "previous"} if before else {})
        marks.update({current: "current"} if current else {})
    return marks


@command(
    "verify", exits={0: "nothing changed", 3: "something changed: 'localpuppet stage' repairs it"}
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
    problems = {
        staged.release: staging.problems(staged, full=not quick) for staged in releases_to_verify
    }
    broken = {name: list(texts) for name, texts in problems.items() if texts}
    if as_json:
        render.emit_json({"schema": 1, "verified": sorted(problems), "problems": broken})
    else:
        for staged in releases_to_verify:
            word = "broken" if staged.release in broken else "sound"
            color = "red" if staged.release in broken else "green"
            render.emit(f"{click.style(word, fg=color)}  {staged.release}")
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
