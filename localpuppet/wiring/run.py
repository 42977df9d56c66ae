"""What every run needs before the supervisor gets it, whoever asks for the run.

Shared by `localpuppet apply` and the agent's runs.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from localpuppet.cli import render
from localpuppet.enc.classify import node_document
from localpuppet.enc.input import Source, read_input
from localpuppet.formats.names import ReleasePath
from localpuppet.releases.release import Release
from localpuppet.runs.options import Wish
from localpuppet.wiring.node import Parts


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A run that is ready to be supervised.

    Attributes:
        source: The input.
        release: Its release, on the node.
        wish: How.
    """

    source: Source
    release: Release
    wish: Wish


def ready(
    parts: Parts,
    wish: Wish,
    *,
    source: str | None = None,
    package: Path | None = None,
    allow_rollback: bool = False,
) -> Job:
    """Read the input, bring its release onto the node, and refuse what can be refused by now.

    Args:
        parts: The wiring.
        wish: How it is to be run.
        source: The input; the node's own for `None`.
        package: A package to install first, and to take the release from.
        allow_rollback: Whether the input may go back.

    Raises:
        LocalpuppetError: The input is refused, or the release cannot be had; nothing was locked,
            and nothing recorded.
    """
    read = read_input(
        str(parts.settings.input) if source is None else source,
        documents=parts.documents,
        fetch=parts.fetch(),
    )
    read, wish = _overruled(parts, read, wish, own=source is None, allow_rollback=allow_rollback)
    prepare(parts, read.input.app, package=package)
    release = parts.release(read.input.app)
    if parts.settings.enc is None and wish.document is None:
        node_document(read, release, answer=None)
    return Job(source=read, release=release, wish=wish)


def _overruled(
    parts: Parts, read: Source, wish: Wish, *, own: bool, allow_rollback: bool
) -> tuple[Source, Wish]:
    """Return what is to be run: the input, or what an operator rolled back to.

    A rollback holds until the node's own input changes; then it is over. Without one, a source
    only goes forward.

    Args:
        parts: The wiring.
        read: The input.
        wish: How it is to be run.
        own: Whether it is the node's own input, and not another that somebody named.
        allow_rollback: Whether the input may go back.

    Raises:
        InvalidInputError: The input goes back, and nobody allowed it.
    """
    rollback = parts.ledger.rollback() if own else None
    if rollback is not None and rollback.input_sha256 == read.sha256 and not allow_rollback:
        from localpuppet.enc.document import NodeDocument

        render.say(
            f"# rolled back to {rollback.app} by {rollback.user} (run {rollback.run});"
            " a changed input ends that",
            err=True,
        )
        document = NodeDocument.from_dict(rollback.node_document)
        source = replace(
            read,
            name=f"rollback to run {rollback.run}",
            input=replace(read.input, app=rollback.app, layers=()),
        )
        return source, replace(wish, document=document)
    if rollback is not None:
        if not wish.noop:
            parts.ledger.end_rollback()
    elif not allow_rollback:
        parts.ledger.check_forward(read.input.app)
    return read, wish


def prepare(parts: Parts, app: str, *, package: Path | None) -> None:
    """Make sure that a release is on the node and sound, as far as it can come from somewhere.

    Args:
        parts: The wiring.
        app: What the input names.
        package: A package to install first, and to stage from.

    Raises:
        LocalpuppetError: The package is refused, or the release cannot be staged.
    """
    from localpuppet.wiring.interfaces import Approval

    path, approve = ReleasePath.parse(app, where="app"), Approval(parts)
    if package is not None:
        parts.package_tools().install(package)
        with parts.git_progress(f"staging {path}") as repository:
            parts.importer(repository, approve).stage_installed(path)
    elif path.is_tag and _somewhere(parts, path):
        with parts.git_progress(f"staging {path}") as repository:
            parts.importer(repository, approve).stage(path)
    else:
        return
    if not approve.given:
        _read_once(parts, path)


def _read_once(parts: Parts, path: ReleasePath) -> None:
    """Have Puppet's parser read a release that it has not read yet."""
    from localpuppet.releases.interfaces import Interfaces
    from localpuppet.wiring.interfaces import read_staged

    if Interfaces(parts.settings.state).kept(parts.release(path)) is None:
        read_staged(parts, path)


def _somewhere(parts: Parts, path: ReleasePath) -> bool:
    """Whether staging could find it; where it could not, the run itself says best what is wrong."""
    from localpuppet.releases.packages.directory import find, find_pack

    settings = parts.settings
    if path.source in settings.sources or find(settings.packages, path) is not None:
        return True
    return find_pack(settings.packages, path) is not None
