"""Requires that enough people signed a tag: `signatures: 2` of a source.

- The rule is TUF's THRESHOLD of a role: a number of keys whose signatures are required.
- The tag's own signature and its countersignatures count, one for each person
  (`releases.git.signatures`), by the current signers file: a removed signer does not count.
- The tag's own signature must be valid in any case, because it covers the tag's time.
"""

from typing import TYPE_CHECKING

from localpuppet.base.errors import IntegrityError
from localpuppet.node.releases.git.names import GitUrl, Tag
from localpuppet.node.releases.git.signatures import people
from localpuppet.node.releases.source import ReleaseSource

if TYPE_CHECKING:
    from localpuppet.node.releases.git.repository import Repository


def signed_by(
    repository: "Repository", source: ReleaseSource, *, url: GitUrl, tag: Tag
) -> list[str]:
    """Return the people who have signed a tag, without fetching anything.

    Args:
        repository: Git.
        source: The source; without signers it requires no signature.
        url: The repository.
        tag: A fetched tag.

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
    return people(
        [own, *(signature.signer for signature in beside if signature.signer is not None)]
    )


def refuse_unsigned(
    repository: "Repository", source: ReleaseSource, *, url: GitUrl, tag: Tag, where: str
) -> None:
    """Reject a tag that too few people have signed.

    The mirror's signatures are judged first; the repository is asked only if they are too few.

    Args:
        repository: Git.
        source: The source; without signers it accepts any tag.
        url: The repository.
        tag: A fetched tag.
        where: The tag's location, for messages.

    Raises:
        IntegrityError: Too few people have signed.
        UnavailableError: The mirror has too few signatures, and the repository is unreachable.
    """
    if source.signers is None:
        return
    own = repository.verify_signature(url, tag, signers=source.signers)
    if source.signatures == 1:
        return
    names: list[str] = []
    problems: list[str] = []
    for refresh in (False, True):
        signatures = repository.countersignatures(
            url, tag, signers=source.signers, source=source.name, refresh=refresh
        )
        names = people(
            [own, *(signature.signer for signature in signatures if signature.signer is not None)]
        )
        if len(names) >= source.signatures:
            return
        problems = [
            f"{signature.id[:12]} {signature.problem}"
            for signature in signatures
            if signature.problem
        ]
    missing = source.signatures - len(names)
    more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
    void = f"; does not count: {problems[0]}{more}" if problems else ""
    raise IntegrityError(
        f"{source.name} requires {source.signatures} signatures, and the tag {tag} is"
        f" signed by {', '.join(names)}: {missing} more must sign{void}",
        where=where,
        hint=f"'localpuppet release sign DIR {tag}' signs; then stage again",
    )
