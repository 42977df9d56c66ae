"""Tags the commit of a work tree as a release, after all checks passed.

    committed? nothing ignored that matters? a new name? -> check -> still committed? -> tag, push

If a step fails, no tag is left.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.base.errors import IntegrityError, InvalidInputError
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.formats.text import one_line
from localpuppet.base.value import Value
from localpuppet.node.releases.git.git_names import TRAILER, Tag, sources_of
from localpuppet.node.releases.git.signatures import signature_kind
from localpuppet.node.releases.release_files import LOCK, MANIFEST, require_manifest
from localpuppet.node.releases.source import ReleaseSource

if TYPE_CHECKING:
    from localpuppet.node.releases.git.work_tree import GitWorkTree


# What Puppet would read here, and nodes would not get, if git ignores it.
_MATTERS = (
    ":(glob)*/manifests/**",
    ":(glob)*/functions/**",
    ":(glob)*/types/**",
    "enc.yaml",
    "hiera.yaml",
)


class CountersignedTag(Value):
    """A tag with its new countersignature."""

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


class Tagged(Value):
    """A release that was tagged.

    Attributes:
        signed: Whether the tag carries a signature.
    """

    tag: Tag
    commit: str
    signed: bool


def tag_release(
    tree: "GitWorkTree",
    tag: Tag,
    *,
    check: Callable[[], Sequence[str]],
    message: str,
    sign: bool,
    push: bool,
) -> Tagged:
    """Tag the commit of a work tree as a release.

    Args:
        check: Checks whether the working copy can be released; returns files that Puppet reads
            in it and that git ignores.

    Raises:
        LocalpuppetError: The work tree, the tag or the release is invalid, or git failed; no tag is
            left.
    """
    commit = tree.commit
    _refuse_uncommitted(tree)
    _refuse_existing(tree, tag, push=push)
    _refuse_unseen(check(), tree.directory)
    # The tag has exactly what was checked, even if the user edited files meanwhile.
    _refuse_uncommitted(tree)
    tree.make_tag(tag, commit=commit, message=message, sign=sign)
    signed = keep_new(tree, f"refs/tags/{tag}", sign=sign, push=push)
    return Tagged(tag=tag, commit=commit, signed=signed)


def keep_new(tree: "GitWorkTree", ref: str, *, sign: bool, push: bool) -> bool:
    """Keep a tag object that was just made, or remove it; return whether it carries a signature.

    Args:
        sign: Whether a signature is required.
    """
    kept = False
    try:
        signed = tree.is_signed(ref)
        if sign and not signed:
            raise InvalidInputError(
                "git made no signature",
                where=str(tree.directory),
                hint="does user.signingkey name an existing key? try: git tag --sign",
            )
        if push:
            tree.push_ref(ref)
        kept = True
    finally:
        if not kept:
            tree.remove_ref(ref)
    return signed


def source_of_tag(
    tree: "GitWorkTree", sources: Mapping[str, ReleaseSource], *, named: str | None, sign: bool
) -> str | None:
    """Return the source that a new tag names; `None` if an unsigned tag names none.

    Args:
        sources: The site's sources by name.
        named: The user's choice.
        sign: Whether the tag will be signed.

    Raises:
        InvalidInputError: The source is unknown, or a signed tag would name none.
    """
    if named is not None:
        if "/" in ReleasePath.parse(named, where="--source"):
            raise InvalidInputError(f"{named!r} is not the name of a source", where="--source")
        return named
    url = tree.remote_url()
    names = [name for name, source in sources.items() if source.url == url]
    if len(names) == 1:
        return names[0]
    if sign:
        how_many = "several sources have" if names else "no source has"
        raise InvalidInputError(
            f"a signed tag says which source it is for, and {how_many} the URL of origin",
            where="localpuppet.yaml: sources",
            hint="--source NAME",
        )
    return None


def message_for(text: str, source: str | None) -> str:
    """Return a tag's message, with the trailer that names its source."""
    return text if source is None else f"{text}\n\n{TRAILER}{source}"


def parse_release_tag(text: str) -> Tag:
    """Return the tag of a release.

    Raises:
        InvalidInputError: The text does not match the grammar, or cannot end an app's name.
    """
    tag = Tag.parse(text, where="TAG")
    if "/" in tag:
        raise InvalidInputError(
            f"{tag!r} has a '/': a node could not name it as NAME/tags/TAG", where="TAG"
        )
    ReleasePath.parse(f"app/tags/{tag}", where="TAG")
    return tag


def _refuse_uncommitted(tree: "GitWorkTree") -> None:
    if not tree.tracked(MANIFEST):
        require_manifest(tree.directory)
    for name in (MANIFEST, LOCK):
        if not tree.tracked(name):
            if tree.ignored(name):
                raise InvalidInputError(
                    f"git ignores {name}, which the release needs",
                    where=str(tree.directory),
                    hint=f"git add -f {name}, or correct .gitignore",
                )
            made = "" if name == MANIFEST else f"'localpuppet release lock {tree.directory}', "
            raise InvalidInputError(
                f"{name} is not committed",
                where=str(tree.directory),
                hint=f"{made}git add, git commit",
            )
    changes = tree.changes()
    if changes:
        more = f" and {len(changes) - 1} more" if len(changes) > 1 else ""
        raise InvalidInputError(
            f"the work tree is not clean: {changes[0]}{more}",
            where=str(tree.directory),
            hint="commit, stash or ignore it: a tag holds what is committed",
        )
    _refuse_unseen(tree.ignored(*_MATTERS), tree.directory)


def _refuse_unseen(files: Sequence[str], directory: Path) -> None:
    if files:
        raise InvalidInputError(
            f"git ignores {files[0]}, which Puppet reads here and nodes do not have",
            where=str(directory),
            hint="commit it (git add -f), or remove it",
        )


def _refuse_existing(tree: "GitWorkTree", tag: Tag, *, push: bool) -> None:
    if tree.has_tag(tag):
        raise InvalidInputError(
            f"the tag {tag} exists already, and a release never changes",
            where=str(tree.directory),
            hint=f"choose the next name; if the tag was never pushed: git tag -d {tag}",
        )
    if push and tree.remote_tag(tag):
        raise InvalidInputError(
            f"origin has the tag {tag} already, and a release never changes",
            where=str(tree.directory),
            hint="choose the next name; 'git fetch --tags' shows the existing tags",
        )
