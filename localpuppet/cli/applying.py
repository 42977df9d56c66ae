"""What every run needs before the supervisor gets it, whoever asks for the run.

Shared by `localpuppet apply` and the agent's runs.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from localpuppet.cli import render
from localpuppet.cli.preparing import prepare
from localpuppet.cli.wiring import Parts
from localpuppet.enc import Source, node_document, read_input
from localpuppet.model.wish import Wish
from localpuppet.release import Release


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
        from localpuppet.model.node import NodeDocument

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
