"""Names that git gets as arguments: tags, URLs, object ids.

Names that git could take for an option, a range, a path or a command are rejected here. The rules
are stricter than `git check-ref-format`, which accepts `-r1` and names that look like a commit id
(both tried with git 2.39.5).
"""

import re

from localpuppet.base.errors import InvalidInputError

MAX_TAG = 200
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
    def parse(cls, text: str, *, where: str) -> "Tag":
        """Return the tag.

        Raises:
            InvalidInputError: The name does not match the grammar.
        """
        return cls(_parse_ref("tag", text, where=where))


def _parse_ref(kind: str, text: str, *, where: str) -> str:
    """Return a tag's or branch's name; the grammar is the same."""
    problem = _ref_problem(text)
    if problem:
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
    def parse(cls, text: str, *, where: str, allow_file: bool = False) -> "GitUrl":
        """Return the URL.

        Args:
            text: The URL.
            where: The location of the text, for messages.
            allow_file: Accept `file://`, for tests and air-gapped mirrors.

        Raises:
            InvalidInputError: The URL has another transport, credentials, or forbidden characters.
        """
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


def parse_branch(text: str, *, where: str) -> str:
    """Return a branch's name, without `refs/heads/`; its grammar is that of tags.

    Raises:
        InvalidInputError: The name does not match the grammar.
    """
    return _parse_ref("branch", text, where=where)


def parse_object_id(text: str, *, where: str) -> str:
    """Return a full object id of git.

    Raises:
        InvalidInputError: The text is not 40 lower-case hex digits, or the null id.
    """
    if not re.match(_OBJECT, text) or text == "0" * 40:
        raise InvalidInputError(
            f"{text[:44]!r} is an invalid id",
            where=where,
            hint="a full one: 40 lower-case hex digits",
        )
    return text


def parse_digest(text: str, *, where: str) -> str:
    """Return a SHA-256 in hex.

    Raises:
        InvalidInputError: The text is not 64 lower-case hex digits.
    """
    if not re.match(_DIGEST, text):
        raise InvalidInputError(
            f"{text[:70]!r} is an invalid digest", where=where, hint="64 lower-case hex digits"
        )
    return text


def parse_module_name(text: str, *, where: str) -> str:
    """Return the name of a single module, which is its directory on the modulepath.

    Raises:
        InvalidInputError: Puppet would reject the name.
    """
    if not re.match(_NAME, text):
        raise InvalidInputError(
            f"{text[:60]!r} is an invalid module name",
            where=where,
            hint="a lower-case letter, then lower-case letters, digits and '_'",
        )
    return text
