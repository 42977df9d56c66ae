"""Countersignatures: signatures of further people over a tag, beside the tag's own.

    refs/signatures/r2/1f0c… -> object 9276…   the tag object of r2, so all that it names
                                type tag
                                tag signatures/r2
                                …
                                Localpuppet-Source: web
                                -----BEGIN SSH SIGNATURE-----

A countersignature is a tag object of the tag object, which git signs and verifies like any tag
(`releases.git.signatures`). Its ref is named by its own id, so that no signer replaces another's.
"""

from collections.abc import Iterable
from pathlib import Path

from localpuppet.base.errors import IntegrityError
from localpuppet.node.releases.git.program import GitProgram
from localpuppet.node.releases.git.signatures import Countersignature, pinned
from localpuppet.node.releases.git.tags import (
    TagObject,
    countersignature_problem,
    countersignature_refs,
)

MAX_COUNTERSIGNATURES = 64
# The longest of git's own: a message of many pages, or a chain of certificates.
MAX_BYTES = 64 * 1024


def refs_among(listed: Iterable[tuple[str, str]], tag: str) -> list[str]:
    """Return the refs of a tag's countersignatures that a repository listed.

    Other refs are ignored.

    Args:
        listed: Names of refs with their object ids.
        tag: The tag.

    Raises:
        IntegrityError: The tag has more than `MAX_COUNTERSIGNATURES`.
    """
    own = countersignature_refs(tag)
    refs = [name for name, held in listed if name == f"{own}{held}"]
    _refuse_too_many(len(refs), tag)
    return refs


def judged(
    program: GitProgram,
    mirror: Path,
    tag_object: TagObject,
    *,
    tag: str,
    signers: Path,
    source: str,
) -> list[Countersignature]:
    """Judge each countersignature of a tag that a mirror has.

    Args:
        program: Starts git.
        mirror: The git directory.
        tag_object: The tag.
        tag: Its name.
        signers: The file of trusted keys.
        source: The source that each must name.

    Raises:
        IntegrityError: The tag has more than `MAX_COUNTERSIGNATURES`.
        InvalidInputError: The file of keys is invalid.
    """
    listed = program.run(
        mirror,
        "for-each-ref",
        f"--count={MAX_COUNTERSIGNATURES + 1}",
        "--format=%(objectname) %(objecttype) %(objectsize)",
        countersignature_refs(tag),
    )
    lines = list(dict.fromkeys(listed.decode().splitlines()))
    _refuse_too_many(len(lines), tag)
    where = f"tag {tag}"
    if not lines:
        return []
    result = []
    with pinned(program, signers) as keys:
        for line in lines:
            name, kind, size = line.split(" ")
            signer, problem = None, "is not a countersignature"
            if kind == "tag" and int(size) <= MAX_BYTES:
                body = program.run(mirror, "cat-file", "tag", name)
                problem = countersignature_problem(
                    body, tag=tag, tag_object=tag_object.id, source=source
                )
                if not problem:
                    try:
                        signer = keys.verify(mirror, name, where=where)
                    except IntegrityError as error:
                        # Users with push access can add invalid ones, which do not count.
                        problem = error.what
            result.append(Countersignature(id=name, signer=signer, problem=problem))
    return result


def _refuse_too_many(count: int, tag: str) -> None:
    if count > MAX_COUNTERSIGNATURES:
        raise IntegrityError(
            f"has more than {MAX_COUNTERSIGNATURES} countersignatures",
            where=f"tag {tag}",
            hint="remove what is not of your people:"
            f" git push origin :{countersignature_refs(tag)}ID",
        )
