"""Countersigns a tag that another person made and signed: a source may require several people.

    an honest, signed tag? the one that origin has? for which source? -> sign, push

Nodes judge which keys a source trusts (`releases.threshold`). If a step fails, no signature is
left.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from localpuppet.base.errors import IntegrityError, InvalidInputError
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.formats.text import one_line
from localpuppet.node.releases.git.names import TRAILER, Tag
from localpuppet.node.releases.git.signatures import signature_kind
from localpuppet.node.releases.git.tags import sources_of
from localpuppet.node.releases.making.tagging import keep_new

if TYPE_CHECKING:
    from localpuppet.node.releases.git.work_tree import GitWorkTree


@dataclass(frozen=True, slots=True, kw_only=True)
class CountersignedTag:
    """A tag with its new countersignature.

    Attributes:
        tag: The tag.
        tag_object: The id of the tag object.
        commit: The tag's commit.
        source: The source of the release.
        ref: The ref of the countersignature.
    """

    tag: Tag
    tag_object: str
    commit: str
    source: str
    ref: str


def countersign(
    tree: "GitWorkTree", tag: Tag, *, source: str | None, push: bool
) -> CountersignedTag:
    """Countersign a tag as one more person.

    Args:
        tree: The work tree.
        tag: The tag.
        source: The source that the tag must be for; `None` for the one that the tag names.
        push: Push the signature to the remote, which must have the same tag.

    Raises:
        InvalidInputError: The tag does not exist, names no source, or git made no signature.
        IntegrityError: The tag is malformed, unsigned, for another source, or differs from
            origin's.
        UnavailableError: The remote is unreachable; no signature is left.
        StateError: git failed.
    """
    existing = tree.tag_object(tag)
    if existing is None:
        raise InvalidInputError(
            f"there is no annotated tag {tag} here",
            where=str(tree.directory),
            hint=f"git fetch origin tag {tag}",
        )
    tag_object, body = existing
    where = f"{tree.directory} tag {tag}"
    signature_kind(body, where=where)
    lines = body.split(b"\n")[:3]
    if lines[1:] != [b"type commit", b"tag %s" % tag.encode()]:
        raise IntegrityError("is a nested tag, or has another name inside", where=where)
    named = _source(body, source, where=where)
    if push:
        _refuse_other_than_origins(tree, tag, tag_object, where=where)
    ref = tree.countersign(tag, tag_object, message=f"signs {tag}\n\n{TRAILER}{named}")
    keep_new(tree, ref, sign=True, push=push)
    commit = lines[0].removeprefix(b"object ").decode()
    return CountersignedTag(tag=tag, tag_object=tag_object, commit=commit, source=named, ref=ref)


def _source(body: bytes, wanted: str | None, *, where: str) -> str:
    sources = sources_of(body)
    if wanted is not None and "/" in ReleasePath.parse(wanted, where="--source"):
        raise InvalidInputError(f"{wanted!r} is not the name of a source", where="--source")
    if not sources:
        if wanted is None:
            raise InvalidInputError("does not name its source", where=where, hint="--source NAME")
        return wanted
    if len(sources) > 1 or (wanted is not None and sources != (wanted,)):
        shown = ", ".join(one_line(name)[:60] for name in sources[:3])
        raise IntegrityError(f"is for the source {shown}", where=where, hint="do not sign it")
    return ReleasePath.parse(sources[0], where=where)


def _refuse_other_than_origins(
    tree: "GitWorkTree", tag: Tag, tag_object: str, *, where: str
) -> None:
    theirs = tree.remote_tag(tag)
    if not theirs:
        raise InvalidInputError(
            "origin has no such tag", where=where, hint=f"git push origin {tag}, or --no-push"
        )
    if theirs != tag_object:
        raise IntegrityError(
            f"is {tag_object[:12]} here and {theirs[:12]} at origin",
            where=where,
            hint="find out which is right and who moved the tag before you sign",
        )
