"""Tag objects: what makes a tag an honest name of a commit.

Owns: the rules for the bytes of a tag object (git's format: `object`, `type`, `tag` lines, an empty
line, the message). Refuses to know: where the bytes come from, signatures.
"""

from dataclasses import dataclass

from localpuppet.errors import IntegrityError
from localpuppet.formats.text import one_line

# What a signed tag says of itself: otherwise the tag of one repository would do for another.
TRAILER = "Localpuppet-Source: "


@dataclass(frozen=True, slots=True, kw_only=True)
class TagObject:
    """What `refs/tags/TAG` of a repository is.

    Attributes:
        id: What the ref holds: the id of a tag object, or of the commit of a lightweight tag.
        commit: The commit behind it.
        annotated: Whether there is a tag object.
        tree: The id of the commit's tree.
        sources: What its message says that it is a release of, a name for each such line.
    """

    id: str
    commit: str
    annotated: bool
    tree: str
    sources: tuple[str, ...] = ()


def judge(
    name: str,
    ref: str,
    found: tuple[str, str, bytes] | None,
    commit: tuple[str, str, bytes] | None,
    tree: tuple[str, str, bytes] | None,
    *,
    where: str,
) -> TagObject:
    """Return what a tag is, from the object of its ref and from what that peels to.

    Args:
        name: The tag that was asked for.
        ref: The id that its ref holds.
        found: Id, type and bytes of that object; `None` when it is missing.
        commit: The same of the commit that it peels to.
        tree: The same of that commit's tree.
        where: The repository and tag, for messages.

    Raises:
        IntegrityError: It is nested, misnamed, or points at no commit.
    """
    kind = found[1] if found else "missing object"
    sources: tuple[str, ...] = ()
    if found and kind == "tag":
        head, _, message = found[2].partition(b"\n\n")
        sources = _sources(message)
        fields = dict(line.partition(b" ")[::2] for line in head.split(b"\n") if b" " in line)
        if fields.get(b"type") != b"commit":
            raise IntegrityError(
                "is a nested tag, or a tag of something else than a commit", where=where
            )
        if fields.get(b"tag") != name.encode():
            said = one_line(fields.get(b"tag", b"").decode("utf-8", "replace"))[:60]
            raise IntegrityError(f"the tag object says that its name is {said!r}", where=where)
        if commit is None or fields.get(b"object") != commit[0].encode():
            raise IntegrityError("its commit is missing in the mirror", where=where)
    elif kind != "commit":
        raise IntegrityError(f"points at a {kind}, not at a commit", where=where)
    if commit is None or tree is None:
        raise IntegrityError("its tree is missing in the mirror", where=where)
    return TagObject(
        id=ref, commit=commit[0], annotated=kind == "tag", tree=tree[0], sources=sources
    )


def _sources(message: bytes) -> tuple[str, ...]:
    """Return the names in a message's trailers, up to its signature, that covers what is before."""
    found = []
    for line in message.split(b"\n"):
        if line.startswith(b"-----BEGIN "):
            break
        if line.startswith(TRAILER.encode()):
            found.append(line[len(TRAILER) :].decode("utf-8", "replace").strip())
    return tuple(found)
