"""Names from outside, each parsed once where it enters the program.

A parsed name is a `str` subclass, so that it serialises as text and mypy tells it from raw input.
Functions that parse or check raise `InvalidInputError` for any other text. Grammars:

- classes, variables, environments: Puppet's
  (https://www.puppet.com/docs/puppet/7/lang_reserved.html)
- nodes: DNS
- paths below `modules/`: ASCII components, no `.` or `..`, no leading `-`
"""

import re
from collections.abc import Collection
from datetime import datetime, timedelta

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.text import MAX_LINE_BYTES

# Patterns are texts: `re` compiles and keeps them at first use, and most commands use few.
_COMPONENT = r"[A-Za-z0-9_.+][A-Za-z0-9_.+-]*\Z"
_NODE_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_NODE = rf"{_NODE_LABEL}(?:\.{_NODE_LABEL})*\Z"
_CLASS = r"[a-z][a-z0-9_]*(?:::[a-z][a-z0-9_]*)*\Z"
_VARIABLE = r"[a-z_][A-Za-z0-9_]*\Z"
_CLASS_PARAMETER = r"[a-z][A-Za-z0-9_]*\Z"
_ENVIRONMENT = r"[A-Za-z0-9_]{1,255}\Z"
_PUPPET_TAG = r"[A-Za-z0-9_][A-Za-z0-9_:.-]*\Z"
_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z"
_SIGNER = r"[a-z0-9_][a-z0-9_.@-]*\Z"
_ROLLOUT_ID = r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{4}\Z"
_RUN_ID = r"[0-9]{8}T[0-9]{6}\.[0-9]{6}Z-[0-9a-f]{4}\Z"
_DIGEST = r"[0-9a-f]{64}\Z"

RESERVED_PARAMETERS = frozenset(
    (
        "agent_specified_environment",
        "caller_module_name",
        "clientcert",
        "clientnoop",
        "clientversion",
        "environment",
        "facts",
        "module_name",
        "name",
        "server_facts",
        "serverip",
        "servername",
        "serverversion",
        "title",
        "trusted",
    )
)
_RESERVED_ENVIRONMENTS = frozenset({"agent", "main", "master", "user"})


class NodeName(str):
    """A lower-case DNS name of at most 253 characters."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> "NodeName":
        if text != text.lower() and re.match(_NODE, text.lower()):
            raise InvalidInputError(
                f"node name {text!r} must be in lower case", hint=f"write {text.lower()}"
            )
        if len(text) > 253 or not re.match(_NODE, text):
            raise InvalidInputError(
                f"node name {text[:60]!r} has a character or length that DNS names do not allow",
                hint="letters a-z, digits and '-' between dots; no wildcards",
            )
        return cls(text)


class SignerName(str):
    """The name of a signer: a node, or a person with a key; both share one name space.

    It is the certificate's CN, the `kid` of a signature and, with `.pem`, a file name. Its caller
    id has the form of mcollective and Choria: `choria=alice`.
    """

    __slots__ = ()
    CALLER = "choria="

    @classmethod
    def parse(cls, text: str) -> "SignerName":
        if len(text) > 251 or not re.match(_SIGNER, text):
            raise InvalidInputError(
                f"{text[:60]!r} is not a signer's name",
                hint="a node's name, or a-z 0-9 _ . @ - in lower case, at most 251 of them",
            )
        return cls(text)

    @classmethod
    def parse_caller(cls, text: str) -> "SignerName":
        """Return the name in a caller id: `alice` of `choria=alice`."""
        if not text.startswith(cls.CALLER):
            raise InvalidInputError(
                f"{text[:60]!r} is not a caller id", hint=f"write {cls.CALLER}NAME"
            )
        return cls.parse(text.removeprefix(cls.CALLER))

    @property
    def caller(self) -> str:
        """The caller id, as requests and policies have it."""
        return self.CALLER + self


class ReleasePath(str):
    """A directory of modules relative to `modules/`: `foo/tags/r1`, `dist/trunk`."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str, *, where: str = "") -> "ReleasePath":
        if not text:
            raise InvalidInputError(
                "is empty", where=where, hint="name a release, such as foo/tags/r1"
            )
        if text.startswith("/"):
            raise InvalidInputError(
                f"{text[:80]!r} is absolute", where=where, hint="write it relative to modules/"
            )
        if len(text) > 1024:
            raise InvalidInputError("is longer than 1024 characters", where=where)
        for component in text.split("/"):
            problem = _component_problem(component)
            if problem:
                raise InvalidInputError(f"{text[:80]!r} {problem}", where=where)
        return cls(text)

    @property
    def source(self) -> str:
        """The source of the release: `foo` for `foo/tags/r1`, the whole path for other layouts."""
        parts = self.split("/")
        if self.is_branch:
            return "/".join(parts[: parts.index("branches", 1)])
        if len(parts) > 2 and parts[-2] == "tags":
            return "/".join(parts[:-2])
        if len(parts) > 1 and parts[-1] in ("trunk", "assigned"):
            return "/".join(parts[:-1])
        return str(self)

    @property
    def is_assigned(self) -> bool:
        """Whether the path means the release that a signed request assigned: `foo/assigned`."""
        return self.endswith("/assigned") and not self.is_tag and not self.is_branch

    @property
    def is_tag(self) -> bool:
        """Whether the path names an immutable release."""
        parts = self.split("/")
        return len(parts) > 2 and parts[-2] == "tags" and not self.is_branch

    @property
    def is_branch(self) -> bool:
        """Whether the path names a branch, such as `foo/branches/feature/x`, of any name."""
        return "branches" in self.split("/")[1:-1]

    @property
    def branch(self) -> str:
        """The branch of `foo/branches/BRANCH`; empty for any other path."""
        parts = self.split("/")
        return "/".join(parts[parts.index("branches", 1) + 1 :]) if self.is_branch else ""


def _component_problem(component: str) -> str:
    if component == "":
        return "has an empty component"
    if component == "..":
        return "leaves modules/: '..' is traversal"
    if component == ".":
        return "has the component '.'"
    if component.startswith("-"):
        return "has a component that starts with '-'"
    if len(component) > 255:
        return "has a component of more than 255 characters"
    if not re.match(_COMPONENT, component):
        return "has an invalid character: ASCII letters, digits and _ . + - are allowed"
    return ""


class ClassName(str):
    """The name of a Puppet class, without the leading `::`."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str, *, where: str = "") -> "ClassName":
        if re.match(_CLASS, text):
            return cls(text)
        candidate = text.removeprefix("::").lower()
        hint = (
            f"write {candidate}" if re.match(_CLASS, candidate) else "Puppet wants foo or foo::bar"
        )
        raise InvalidInputError(f"{text[:80]!r} is an invalid class name", where=where, hint=hint)


def is_class_name(text: str) -> bool:
    """Return whether a text names a Puppet class, without the leading `::`."""
    return re.match(_CLASS, text) is not None


class EnvironmentName(str):
    __slots__ = ()

    @classmethod
    def parse(cls, text: str, *, where: str = "") -> "EnvironmentName":
        if not re.match(_ENVIRONMENT, text) or text in _RESERVED_ENVIRONMENTS:
            raise InvalidInputError(
                f"{text[:80]!r} is not a valid environment name",
                where=where,
                hint="letters, digits and '_'",
            )
        return cls(text)


class RunId(str):
    """The id of a run: UTC time to the microsecond and four random hex digits."""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> "RunId":
        try:
            time = text.partition("-")[0]
            if re.match(_RUN_ID, text) and datetime.fromisoformat(time).year < 9999:
                return cls(text)
        except ValueError:
            pass  # digits that are not a time
        raise InvalidInputError(
            f"{text[:60]!r} is not a run id", hint="see 'localpuppet history' on the node"
        )

    @property
    def time(self) -> datetime:
        """When the run was requested, UTC."""
        return datetime.fromisoformat(self.partition("-")[0])


class RolloutId(str):
    """The id of a rollout: UTC time to the second and four random hex digits."""

    __slots__ = ()

    @staticmethod
    def like(text: str) -> bool:
        return re.match(_ROLLOUT_ID, text) is not None

    @classmethod
    def parse(cls, text: str) -> "RolloutId":
        if not cls.like(text):
            raise InvalidInputError(
                f"{text[:60]!r} is not a rollout's id", hint="see 'localpuppet rollout list'"
            )
        return cls(text)

    @classmethod
    def of(cls, now: datetime, random: str, newest: "RolloutId | None") -> "RolloutId":
        """Return the id of a rollout that begins now; it sorts after `newest`.

        Args:
            random: Four hex digits.
            newest: The latest id in the journals, if any; needed when the clock was set back.
        """
        if newest is not None:
            now = max(now, newest.began() + timedelta(seconds=1))
        return cls(f"{now.strftime('%Y%m%dT%H%M%SZ')}-{random}")

    def began(self) -> datetime:
        """Return when the rollout began, UTC to the second, by the clock of its controller.

        Raises:
            ValueError: The id names a day or time that does not exist.
        """
        return datetime.fromisoformat(self.partition("-")[0])


def parse_tags(text: str) -> str:
    """Return a valid list of Puppet tags: `a,b`."""
    split_tags(text)
    return text


def split_tags(text: str | None) -> tuple[str, ...]:
    """Return the Puppet tags of `a,b`; empty for `None`."""
    tags = [] if text is None else text.split(",")
    hint = "write a,b: names without spaces"
    return tuple(parse_tag(tag, where="--tags", hint=hint) for tag in tags)


def parse_tag(text: str, *, where: str = "", hint: str = "a name without spaces") -> str:
    if len(text) > MAX_LINE_BYTES or not re.match(_PUPPET_TAG, text):
        raise InvalidInputError(f"{text[:40]!r} is not a tag", where=where, hint=hint)
    return text


def parse_uuid(text: str, *, where: str = "") -> str:
    """Return a UUID in canonical form, which may become a key or a file name."""
    if not re.match(_UUID, text):
        raise InvalidInputError(
            f"{text[:60]!r} is not a uuid in canonical form",
            where=where,
            hint="lower-case hexadecimal digits, 8-4-4-4-12",
        )
    return text


def parse_sha256(text: str) -> str:
    """Return a SHA-256 digest in hexadecimal digits."""
    if not re.match(_DIGEST, text):
        raise InvalidInputError("is not a digest")
    return text


def check_parameter(name: str, *, where: str) -> None:
    """Reject a top-scope parameter that Puppet cannot or must not accept from an ENC.

    `facts` fails the compile, and `clientcert` would spoof `$trusted['certname']` (observed on
    Puppet 7.23).
    """
    if name in RESERVED_PARAMETERS:
        raise InvalidInputError(
            f"the parameter {name!r} is reserved by Puppet", where=where, hint="choose another name"
        )
    if not re.match(_VARIABLE, name):
        raise InvalidInputError(
            f"{name[:80]!r} is not a valid variable name",
            where=where,
            hint="a lower-case letter or '_' first, then letters, digits and '_'",
        )


def check_class_parameter(name: str, *, where: str) -> None:
    """Reject a text that is not a parameter name of a class."""
    if not re.match(_CLASS_PARAMETER, name):
        raise InvalidInputError(
            f"{name[:80]!r} is not a valid parameter name",
            where=where,
            hint="a lower-case letter first, then letters, digits and '_'",
        )


def did_you_mean(word: str, known: "list[str]") -> str:
    """Return `did you mean 'x'?`, or a list of the known words, as the hint of an error."""
    if hint := suggest(word, known, most=1):
        return hint
    return f"known: {', '.join(sorted(known))}" if known else "there are none"


def check_known(word: str, known: Collection[str], problem: str, *, where: str = "") -> None:
    """Reject an unknown word; the cure is `did_you_mean`."""
    if word not in known:
        raise InvalidInputError(problem, where=where, hint=did_you_mean(word, list(known)))


def suggest(word: str, known: "list[str]", *, most: int = 3) -> str:
    """Return `did you mean 'x' or 'y'?` with the most similar words; empty if none is similar."""
    import difflib  # only errors need it: saves 3 ms

    close = difflib.get_close_matches(word, known, n=most) or difflib.get_close_matches(
        word.lower(), known, n=most
    )
    if not close:
        return ""
    *others, last = map(repr, close)
    return f"did you mean {' or '.join(filter(None, [', '.join(others), last]))}?"
