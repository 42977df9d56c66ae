"""How many people must have signed a tag: `signatures: 2` of a source.

Owns: the rule, and what is said where it is not met. The rule is TUF's THRESHOLD of a role: a
number of keys whose signatures are required. The tag's own signature and its countersignatures
count, one for each person (`releases.git.signer`), all by the signers file as it is now: who was
removed from that file counts no more. The tag's own signature must count in any case: it covers the
tag's time. Refuses to know: how signatures are verified, and what is remembered of that.
"""

from typing import TYPE_CHECKING

from localpuppet.base.errors import IntegrityError
from localpuppet.node.releases.git.names import GitUrl, Tag
from localpuppet.node.releases.git.signer import people
from localpuppet.node.releases.source import Source

if TYPE_CHECKING:
    from localpuppet.node.releases.git.repository import Repository


def signed_by(repository: "Repository", source: Source, *, url: GitUrl, tag: Tag) -> list[str]:
    """Return the people who have signed a tag, as far as is known here: nothing is fetched.

    Args:
        repository: Git.
        source: The source; nobody has to sign for one without signers.
        url: The repository.
        tag: A tag that was fetched.

    Raises:
        IntegrityError: The tag's own signature does not count.
    """
    if source.signers is None:
        return []
    own = repository.verify_signature(url, tag, signers=source.signers)
    if source.signatures == 1:
        return [own.name]
    beside = repository.countersignatures(
        url, tag, signers=source.signers, source=source.name, refresh=False
    )
    return people([own, *(one.signer for one in beside if one.signer is not None)])


def refuse_unsigned(
    repository: "Repository", source: Source, *, url: GitUrl, tag: Tag, where: str
) -> None:
    """Refuse a tag that not enough people have signed.

    What the mirror has is judged first; the repository is asked only where that is not enough.

    Args:
        repository: Git.
        source: The source; one without signers takes any tag.
        url: The repository.
        tag: A fetched tag.
        where: Its place, for messages.

    Raises:
        IntegrityError: Too few have signed.
        UnavailableError: Too few, as far as is known here, and the repository cannot be had.
    """
    if source.signers is None:
        return
    own = repository.verify_signature(url, tag, signers=source.signers)
    if source.signatures == 1:
        return
    names: list[str] = []
    problems: list[str] = []
    for refresh in (False, True):
        found = repository.countersignatures(
            url, tag, signers=source.signers, source=source.name, refresh=refresh
        )
        names = people([own, *(one.signer for one in found if one.signer is not None)])
        if len(names) >= source.signatures:
            return
        problems = [f"{one.id[:12]} {one.problem}" for one in found if one.problem]
    missing = source.signatures - len(names)
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    void = f"; does not count: {problems[0]}{more}" if problems else ""
    raise IntegrityError(
        f"{source.name} asks for the signatures of {source.signatures} people, and the tag {tag} is"
        f" signed by {', '.join(names)}: {missing} more must sign{void}",
        where=where,
        hint=f"'localpuppet release sign APP_DIR {tag}' signs; then stage again",
    )
