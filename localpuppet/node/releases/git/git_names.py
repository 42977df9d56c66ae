"""Names that git gets as arguments (tags, URLs, object ids), and the bytes of tag objects.

Names that git could take for an option, a range, a path or a command are rejected here. The rules
are stricter than `git check-ref-format`, which accepts `-r1` and names that look like a commit id
(both tried with git 2.39.5).
"""

import re

from localpuppet.base.errors import IntegrityError, InvalidInputError
from localpuppet.base.formats.text import one_line
from localpuppet.base.value import Value
from localpuppet.node.releases.limits import MAX_TAG, MAX_TAG_SUBJECT

# What a signed tag says of itself: otherwise the tag of one repository would do for another.
TRAILER = "Localpuppet-Source: "

# Patterns are texts, compiled at first use: see `base.formats.names`.
_REF = r"[A-Za-z0-9_.+-]+(?:/[A-Za-z0-9_.+-]+)*\Z"
_OBJECT = r"[0-9a-f]{40}\Z"
_DIGEST = r"[0-9a-f]{64}\Z"
_HEX40 = r"[0-9a-fA-F]{40}\Z"
_NAME = r"[a-z][a-z0-9_]*\Z"
_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?"
_PATH = r"[A-Za-z0-9_.~+/@%-]+"
_HTTPS = rf"https://{_HOST}(?::[0-9]{{1,5}})?/{_PATH}\Z"
_SSH = rf"ssh://(?:[A-Za-z0-9_.][A-Za-z0-9_.-]*@)?{_HOST}(?::[0-9]{{1,5}})?/{_PATH}\Z"
_SCP = rf"(?:[A-Za-z0-9_.][A-Za-z0-9_.-]*@){_HOST}:(?!/?-){_PATH}\Z"
_FILE = rf"file:///{_PATH}\Z"
_USERINFO = r"(?i)[a-z+]+://[^/@]*:[^/@]*@"


class Tag(str):
    """A tag's name, without `refs/tags/`."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str, *, where: str = "") -> "Tag":
        return cls(_parse_ref("tag", text, where=where))


def _parse_ref(kind: str, text: str, *, where: str) -> str:
    """Return a tag's or branch's name; the grammar is the same."""
    if problem := _ref_problem(text):
        raise InvalidInputError(
            f"the {kind} name {text[:60]!r} {problem}",
            where=where,
            hint="ASCII letters, digits and _ . + - /",
        )
    return text


def _ref_problem(text: str) -> str:
    if not text:
        return "is empty"
    if len(text) > MAX_TAG:
        return f"is longer than {MAX_TAG} characters"
    if re.match(_HEX40, text):
        return "looks like a commit id (40 hex digits)"
    if ".." in text:
        return "has '..', which git takes for a range"
    if not re.match(_REF, text):
        return "has an invalid character"
    for part in text.split("/"):
        if part.startswith(("-", ".")):
            return f"has a part that starts with {part[0]!r}"
        if part.endswith((".lock", ".")):
            return "has a part that ends in '.lock' or '.'"
    return ""


class GitUrl(str):
    """The URL of a repository: https, ssh, the scp-like form, or (if allowed) file."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str, *, where: str = "", allow_file: bool = False) -> "GitUrl":
        """Return the URL; `allow_file` accepts `file://`, for tests and air-gapped mirrors."""
        if re.match(_USERINFO, text):
            # The message must not repeat it.
            raise InvalidInputError(
                "the URL holds credentials (userinfo with a password)",
                where=where,
                hint="name ssh_key or credentials of the source in localpuppet.yaml",
            )
        forms = [_HTTPS, _SSH, _SCP, *([_FILE] if allow_file else [])]
        steps = text.split("/")
        if len(text) > 1024 or ".." in steps or not any(re.match(form, text) for form in forms):
            # Nothing of the text is repeated: with a scheme forgotten, a password may come first.
            raise InvalidInputError(
                "the URL's scheme or transport is not allowed, or it is malformed",
                where=where,
                hint=_forms(text, allow_file=allow_file),
            )
        return cls(text)


def _forms(text: str, *, allow_file: bool) -> str:
    if text.startswith("file:") and not allow_file:
        return "'allow_file_urls: true' in localpuppet.yaml allows file:///"
    return "https://, ssh:// or user@host:path" + (" or file:///" if allow_file else "")


def parse_branch(text: str, *, where: str = "") -> str:
    """Return a branch's name, without `refs/heads/`; its grammar is that of tags."""
    return _parse_ref("branch", text, where=where)


def parse_object_id(text: str, *, where: str = "") -> str:
    """Return a full object id of git."""
    if not re.match(_OBJECT, text) or text == "0" * 40:
        raise InvalidInputError(
            f"{text[:44]!r} is an invalid id",
            where=where,
            hint="a full one: 40 lower-case hex digits",
        )
    return text


def parse_digest(text: str, *, where: str = "") -> str:
    """Return a SHA-256 in hex."""
    if not re.match(_DIGEST, text):
        raise InvalidInputError(
            f"{text[:70]!r} is an invalid digest", where=where, hint="64 lower-case hex digits"
        )
    return text


def parse_module_name(text: str, *, where: str = "") -> str:
    """Return the name of a single module, which is its directory on the modulepath."""
    if not re.match(_NAME, text):
        raise InvalidInputError(
            f"{text[:60]!r} is an invalid module name",
            where=where,
            hint="a lower-case letter, then lower-case letters, digits and '_'",
        )
    return text


class TagObject(Value):
    """The target of `refs/tags/TAG` in a repository.

    `tagged_at` is the time in the tag object, in seconds since 1970; `None` without one. Subject
    and author are those of the tag, or of the commit for a lightweight tag, cut after
    `MAX_TAG_SUBJECT` characters.
    """

    id: str
    commit: str
    annotated: bool
    tree: str
    sources: tuple[str, ...] = ()
    tagged_at: int | None = None
    subject: str = ""
    author: str = ""


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

    Each is id, type and bytes; `None` when it is missing.
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
        author=_author(git_object[2] if git_object else b""),
    )


def countersignature_problem(body: bytes, *, tag: str, tag_object: str, source: str) -> str:
    """Return why a tag object is not a countersignature of a tag; empty if it is one."""
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
    line = one_line(first[: 4 * MAX_TAG_SUBJECT].decode("utf-8", "replace"))
    return "" if line.startswith("-----BEGIN ") else line[:MAX_TAG_SUBJECT]


def _author(body: bytes) -> str:
    """Return the name in an object's line `tagger NAME <MAIL> …`, or `author NAME <MAIL> …`."""
    for line in body.partition(b"\n\n")[0].split(b"\n"):
        if line.startswith((b"tagger ", b"author ")):
            name = line[7:].partition(b"<")[0].strip()
            return one_line(name[: 4 * MAX_TAG_SUBJECT].decode("utf-8", "replace"))[
                :MAX_TAG_SUBJECT
            ]
    return ""


def _sources(message: bytes) -> tuple[str, ...]:
    """Return the names in a message's trailers, up to the signature that covers them."""
    sources = []
    for line in message.split(b"\n"):
        if line.startswith(b"-----BEGIN "):
            break
        if line.startswith(TRAILER.encode()):
            sources.append(line[len(TRAILER) :].decode("utf-8", "replace").strip())
    return tuple(sources)
