"""Checks the bytes of tag objects: `object`, `type`, `tag` lines, an empty line, the message."""

from localpuppet.base.errors import IntegrityError, InvalidInputError
from localpuppet.base.formats.text import one_line
from localpuppet.base.value import Value
from localpuppet.node.releases.git.names import TRAILER

MAX_SUBJECT = 200


class TagObject(Value):
    """The target of `refs/tags/TAG` in a repository.

    Attributes:
        id: The id of the tag object, or of the commit for a lightweight tag.
        commit: The commit behind it.
        annotated: Whether a tag object exists.
        tree: The id of the commit's tree.
        tagged_at: The time in the tag object, in seconds since 1970; `None` without one.
        sources: The sources that its message names, one for each such line.
        subject: The first line of its message, or of the commit's for a lightweight tag; cut after
            `MAX_SUBJECT` characters.
    """

    id: str
    commit: str
    annotated: bool
    tree: str
    sources: tuple[str, ...] = ()
    tagged_at: int | None = None
    subject: str = ""


def judge(
    name: str,
    ref: str,
    git_object: tuple[str, str, bytes] | None,
    commit: tuple[str, str, bytes] | None,
    tree: tuple[str, str, bytes] | None,
    *,
    where: str,
) -> TagObject:
    """Return a tag, from the object of its ref and the commit and tree behind it.

    Args:
        name: The requested tag.
        ref: The id that its ref holds.
        git_object: Id, type and bytes of that object; `None` when it is missing.
        commit: Id, type and bytes of the commit behind it.
        tree: Id, type and bytes of that commit's tree.
        where: The repository and tag, for messages.

    Raises:
        InvalidInputError: The tag is a tag of a tag.
        IntegrityError: The tag is misnamed, or does not point at a commit.
    """
    kind = git_object[1] if git_object else "missing object"
    sources: tuple[str, ...] = ()
    tagged_at = None
    if git_object and kind == "tag":
        head, _, message = git_object[2].partition(b"\n\n")
        sources, tagged_at = _sources(message), _time(head)
        fields = dict(line.partition(b" ")[::2] for line in head.split(b"\n") if b" " in line)
        if fields.get(b"type") == b"tag" and commit is not None:
            raise InvalidInputError(
                "points at another tag, and not at a commit",
                where=where,
                hint=f"name its commit ('commit: {commit[0]}'), or tag the commit itself",
            )
        if fields.get(b"type") != b"commit":
            raise IntegrityError("is a tag of something else than a commit", where=where)
        if fields.get(b"tag") != name.encode():
            tag_name = one_line(fields.get(b"tag", b"").decode("utf-8", "replace"))[:60]
            raise IntegrityError(f"the tag object says that its name is {tag_name!r}", where=where)
        if commit is None or fields.get(b"object") != commit[0].encode():
            raise IntegrityError("its commit is missing in the mirror", where=where)
    elif kind != "commit":
        raise IntegrityError(f"points at a {kind}, not at a commit", where=where)
    if commit is None or tree is None:
        raise IntegrityError("its tree is missing in the mirror", where=where)
    return TagObject(
        id=ref,
        commit=commit[0],
        annotated=kind == "tag",
        tree=tree[0],
        sources=sources,
        tagged_at=tagged_at,
        subject=_subject(git_object[2] if git_object else b""),
    )


def countersignature_problem(body: bytes, *, tag: str, tag_object: str, source: str) -> str:
    """Return why a tag object is not a countersignature of a tag; empty if it is one.

    Args:
        body: Its bytes. Their signature is verified elsewhere.
        tag: The tag's name.
        tag_object: The id of the tag's object.
        source: The source that it must name.
    """
    head, _, message = body.partition(b"\n\n")
    lines = head.split(b"\n")[:3]
    if lines[:2] != [b"object %s" % tag_object.encode(), b"type tag"]:
        return "belongs to another tag object"
    if lines[2:] != [b"tag %s" % countersignature_name(tag).encode()]:
        return "does not have the name of a countersignature of this tag"
    if _sources(message) != (source,):
        return f"does not name the source {source}"
    return ""


def countersignature_name(tag: str) -> str:
    """Return the tag name inside the countersignatures of a tag."""
    return f"signatures/{tag}"


def countersignature_refs(tag: str) -> str:
    """Return the prefix of the refs of a tag's countersignatures."""
    return f"refs/signatures/{tag}/"


def sources_of(body: bytes) -> tuple[str, ...]:
    """Return the sources that a tag object names, one for each such line."""
    return _sources(body.partition(b"\n\n")[2])


def _time(head: bytes) -> int | None:
    """Return the time in the line `tagger NAME <MAIL> SECONDS ZONE`."""
    for line in head.split(b"\n"):
        fields = line.split(b" ")
        if fields[0] == b"tagger" and len(fields) > 3 and fields[-2].isdigit():
            return int(fields[-2][:18])
    return None


def _subject(body: bytes) -> str:
    """Return the first line of an object's message."""
    first = body.partition(b"\n\n")[2].lstrip().partition(b"\n")[0]
    line = one_line(first[: 4 * MAX_SUBJECT].decode("utf-8", "replace"))
    return "" if line.startswith("-----BEGIN ") else line[:MAX_SUBJECT]


def _sources(message: bytes) -> tuple[str, ...]:
    """Return the names in a message's trailers, up to the signature that covers them."""
    sources = []
    for line in message.split(b"\n"):
        if line.startswith(b"-----BEGIN "):
            break
        if line.startswith(TRAILER.encode()):
            sources.append(line[len(TRAILER) :].decode("utf-8", "replace").strip())
    return tuple(sources)
