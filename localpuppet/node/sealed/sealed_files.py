"""The two kinds of files in the directory `sealed` of a release: values and groups.

A sealed value is a file `sealed/values/LEVEL/KEY.yaml`:

    schema: 1
    group: "role=db"
    serial: 2
    number: 5
    type: string
    age: YWdlLWVuY3J5cHRpb24ub3JnL3YxCi0+…

- The plaintext repeats all that is in clear, the path and the group's recipient. The holder of
  a key refuses a value that was moved to another key, group or number.
- The plaintext is padded: its size says only whether the value has up to 64 bytes, 128, 256, and so
  on.
- `age -d` shows the plaintext to a person: JSON, the value at its end.

A group says who opens a set of values, in a file `sealed/groups/NAME.yaml`:

    schema: 1
    rule: "role=db"
    recipient: age1…
    serial: 2
    operators:
      alice age1…:
       YWdl…
    members:
      db01.example.com age1…:
       YWdl…

Each group has an age identity. Values are sealed to its recipient; the identity itself is
wrapped for each operator and member, in the line below their name and key. A new identity has the
next serial.

Only these bytes are valid: writing what was read gives the same file, so that no character can
change unnoticed.
"""

import re
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import StrEnum
from hashlib import sha256

from localpuppet.base.errors import InvalidInputError, check_limit, errors_at
from localpuppet.base.formats.names import SignerName
from localpuppet.base.formats.strict_json import canonical, parse_object
from localpuppet.base.formats.values import Json
from localpuppet.base.value import Value
from localpuppet.node.sealed.age import (
    MAX_PLAINTEXT,
    RECIPIENT,
    AgeIdentity,
    AgeRecipient,
    open_sealed,
    seal,
)

SCHEMA = 1
# Bytes of a value's file, and of a value: three quarters of the plaintext of a file in base64.
MAX_VALUE_FILE = 96 * 1024
MAX_CONTENT = 45 * 1024
MAX_PATH = 512
_SMALLEST = 64  # bytes to which a value is padded

_LEVEL = r"[A-Za-z0-9_][A-Za-z0-9_.:+=@-]{0,199}"
_PATH = rf"(?:{_LEVEL}/)+[A-Za-z0-9_][A-Za-z0-9_.:+=@-]{{0,199}}\Z"
_GROUP = r"[a-z0-9_][A-Za-z0-9_.:+=@-]{0,199}"
# A serial or a number: within what YAML and Ruby read alike.
NUMBER = rb"[1-9][0-9]{0,8}"
MAX_NUMBER = 999_999_999
BASE64 = rb"YWdl[A-Za-z0-9+/]+={0,2}"
_FORM = rb"""schema: 1
group: "(%b)"
serial: (%b)
number: (%b)
type: ([a-z]+)
age: (%b)
\Z""" % (_GROUP.encode(), NUMBER, NUMBER, BASE64)


class ValueType(StrEnum):
    """What a value is for Puppet.

    `STRING`: a `Sensitive` text. `PLAIN`: a text that is not `Sensitive`, for parameters that
    accept only `String`. `DATA`: `Sensitive` around anything that JSON can express. `FILE`: the
    bytes of a whole file.
    """

    STRING = "string"
    PLAIN = "plain"
    DATA = "data"
    FILE = "file"


def parse_path(text: str, *, where: str = "") -> str:
    """Return the path of a value below `sealed/values`: `LEVEL/KEY`, without `.yaml`."""
    if len(text) > MAX_PATH or not re.match(_PATH, text):
        raise InvalidInputError(
            f"{text[:80]!r} is not LEVEL/KEY of a sealed value",
            where=where,
            hint="ASCII letters, digits and _ . : + = @ -, such as common/db::password",
        )
    return text


def parse_group_name(text: str, *, where: str = "") -> str:
    """Return the name of a group, which is also the name of its file."""
    if not re.fullmatch(_GROUP, text):
        raise InvalidInputError(
            f"{text[:80]!r} is not the name of a group",
            where=where,
            hint="letters, digits and _ . : + = @ -, the first in lower case: role=db",
        )
    return text


def decode(text: bytes) -> bytes:
    """Return the bytes in canonical base64."""
    try:
        data = a2b_base64(text, strict_mode=True)
    except Base64Error as error:
        raise InvalidInputError("is not base64") from error
    if encode(data) != text:
        raise InvalidInputError("is not canonical base64")
    return data


def encode(data: bytes) -> bytes:
    """Return bytes as one line of base64."""
    return b2a_base64(data, newline=False)


class SealedValue(Value):
    """A value as it is in a release.

    Attributes:
        path: `LEVEL/KEY` below `sealed/values`, without `.yaml`.
        serial: The serial of the group's identity to which it is sealed.
        number: How often the value was set; the same number has the same content.
    """

    path: str
    group: str
    serial: int
    number: int
    type: ValueType
    age: bytes

    @property
    def level(self) -> str:
        """The level of the hierarchy, `common` or `nodes/db01.example.com`."""
        return self.path.rpartition("/")[0]

    @property
    def key(self) -> str:
        """The key that Hiera looks up, or the name of a file."""
        return self.path.rpartition("/")[2]

    @classmethod
    def parse(cls, data: bytes, *, path: str) -> "SealedValue":
        where = f"sealed/values/{parse_path(path)}.yaml"
        check_limit(len(data), MAX_VALUE_FILE, where=where)
        match = re.match(_FORM, data)
        with errors_at(where):
            if match is None or match[4].decode() not in [*ValueType]:
                raise InvalidInputError(
                    "is not a sealed value",
                    hint="'localpuppet sealed set' writes it; do not edit it",
                )
            value = cls(
                path=path,
                group=match[1].decode(),
                serial=int(match[2]),
                number=int(match[3]),
                type=ValueType(match[4].decode()),
                age=decode(match[5]),
            )
        if value.to_bytes() != data:
            raise InvalidInputError("has other bytes than those that were sealed", where=where)
        return value

    def to_bytes(self) -> bytes:
        head = f'schema: {SCHEMA}\ngroup: "{self.group}"\nserial: {self.serial}\n'
        tail = f"number: {self.number}\ntype: {self.type}\nage: "
        return (head + tail).encode() + encode(self.age) + b"\n"

    def seal(self, content: bytes, recipient: AgeRecipient) -> "SealedValue":
        """Return this value with a content (see `content_of`), for the group with this serial."""
        body: Json = encode(content).decode() if self.type == ValueType.FILE else content.decode()
        bound = self._bound(recipient)
        text, size = canonical({**bound, "value": body}), _SMALLEST
        head = len(canonical({**bound, "value": ""}))
        while size < len(text) - head:
            size *= 2
        text = text.ljust(head + min(size, MAX_PLAINTEXT - 1 - head)) + b"\n"
        if len(text) > MAX_PLAINTEXT or len(content) > MAX_CONTENT:
            raise InvalidInputError(
                f"is too large to seal: {len(content)} bytes, the limit is about {MAX_CONTENT}",
                where=self.path,
            )
        return replace(self, age=seal(text, recipient))

    def open(self, recipient: AgeRecipient, identities: Sequence[AgeIdentity]) -> bytes:
        """Return the content.

        Raises:
            NotOpenedError: The identity does not open it, or its bytes were changed.
            InvalidInputError: It was sealed for another place, group, number or type.
        """
        where = f"sealed/values/{self.path}.yaml"
        with errors_at(where):
            inside = parse_object(open_sealed(self.age, identities), where="", limit=MAX_PLAINTEXT)
        bound = self._bound(recipient)
        if {**inside, **bound} != inside:
            raise InvalidInputError(
                "was sealed for another key, group or number, and copied here",
                where=where,
                hint="seal it again with 'localpuppet sealed set'",
            )
        body = inside.get("value")
        if not isinstance(body, str) or len(inside) != len(bound) + 1:
            raise InvalidInputError("has another form inside", where=where)
        with errors_at(where):
            return decode(body.encode()) if self.type == ValueType.FILE else body.encode()

    def _bound(self, recipient: AgeRecipient) -> dict[str, Json]:
        return {
            "group": self.group,
            "number": self.number,
            "path": self.path,
            "recipient": str(recipient),
            "serial": self.serial,
            "type": str(self.type),
        }


MAX_GROUP_FILE = 16 * 1024 * 1024
MAX_MEMBERS = 20_000
MAX_RULE = 1024

_NAMES = rb"[a-z0-9_][a-z0-9_.@-]*(?:,[a-z0-9_][a-z0-9_.@-]*)*"
_LINES = rb"  (%b) (%b):\n   (%b)\n"
_MEMBER = _LINES % (_NAMES, RECIPIENT.encode(), BASE64)
_OPERATOR = _LINES % (_NAMES, rb"age1[a-z0-9.+_-]{58,480}", BASE64)
_TERM = rb"[A-Za-z0-9_.:@=+-]+(?: [A-Za-z0-9_.:@=+-]+)*"
_RULE = rb"%b(?:,%b)*" % (_TERM, _TERM)
_HEAD = rb"""schema: 1
rule: "(%b)"
recipient: (%b)
serial: (%b)
operators:
""" % (_RULE, RECIPIENT.encode(), NUMBER)


class GroupMember(Value):
    """A holder of a wrapped identity: an operator, a node, or a pool.

    Attributes:
        names: The name, or the names of the nodes of a pool, which share one key (cloned images).
        wrap: A binary age file with the group's identity.
    """

    names: tuple[str, ...]
    recipient: AgeRecipient
    wrap: bytes

    @property
    def label(self) -> str:
        """The names in one text, by which members are sorted."""
        return ",".join(self.names)

    def to_bytes(self) -> bytes:
        """Return its two lines."""
        return f"  {self.label} {self.recipient}:\n   ".encode() + encode(self.wrap) + b"\n"


class SealedGroup(Value):
    """A group as it is in a release.

    Attributes:
        rule: Which nodes are to be members, `role=db`, as people wrote it.
        serial: The number of the identity behind `recipient`, to which values are sealed.
    """

    name: str
    rule: str
    recipient: AgeRecipient
    serial: int
    operators: tuple[GroupMember, ...]
    members: tuple[GroupMember, ...]

    @classmethod
    def parse(cls, data: bytes, *, name: str) -> "SealedGroup":
        where = f"sealed/groups/{parse_group_name(name)}.yaml"
        check_limit(len(data), MAX_GROUP_FILE, where=where)
        if b"\n<<<<<<< " in data:
            raise InvalidInputError(
                "has conflict markers of git",
                where=where,
                hint=f"run 'localpuppet sealed resolve {name}'",
            )
        head = re.match(_HEAD, data)
        with errors_at(where):
            if head is None:
                raise InvalidInputError(
                    "is not a group of sealed values", hint="do not edit the file"
                )
            inside, _, outside = data[head.end() :].partition(b"members:\n")
            group = cls(
                name=name,
                rule=head[1].decode(),
                recipient=AgeRecipient(head[2].decode()),
                serial=int(head[3]),
                operators=_members(_OPERATOR, inside),
                members=_members(_MEMBER, outside),
            )
            group._refuse_twice()
        if group.to_bytes() != data:
            raise InvalidInputError(
                "has other bytes than localpuppet writes", where=where, hint="do not edit the file"
            )
        return group

    def to_bytes(self) -> bytes:
        head = f'schema: {SCHEMA}\nrule: "{self.rule}"\nrecipient: {self.recipient}\n'
        lines = [f"{head}serial: {self.serial}\noperators:\n".encode()]
        lines += [one.to_bytes() for one in _sorted(self.operators)]
        lines.append(b"members:\n")
        lines += [one.to_bytes() for one in _sorted(self.members)]
        return b"".join(lines)

    @property
    def everybody(self) -> tuple[GroupMember, ...]:
        return self.operators + self.members

    @property
    def by_name(self) -> dict[str, GroupMember]:
        """Members by name; the names of a pool have one member."""
        return {name: one for one in self.members for name in one.names}

    def opened_by(self, identities: Sequence[AgeIdentity]) -> AgeIdentity | None:
        """Return the identity of the group; `None` if no wrap for these identities contains it.

        A wrap counts only if it has the identity behind `recipient`, and was made for this group,
        rule, serial and name: the author of another one could read what is sealed next.
        """
        plugins = any(one.is_plugin for one in identities)
        own = {one.recipient for one in identities if not one.is_plugin}
        for one in self.everybody:
            if one.recipient in own or (plugins and one.recipient.plugin):
                with suppress(InvalidInputError):
                    head, _, secret = open_sealed(one.wrap, identities).partition(b"\n")
                    identity = AgeIdentity.parse(secret.decode("ascii", "replace").rstrip("\n"))
                    if (head, identity.recipient) == (self._bound(one.names), self.recipient):
                        return identity
        return None

    def wrap(
        self, identity: AgeIdentity, names: Sequence[str], recipient: AgeRecipient
    ) -> GroupMember:
        names = tuple(sorted(names))
        sealed = seal(self._bound(names) + f"\n{identity}\n".encode(), recipient)
        return GroupMember(names=names, recipient=recipient, wrap=sealed)

    def _bound(self, names: tuple[str, ...]) -> bytes:
        """Return what a wrap repeats, shortened by a digest: a comment in a file of identities."""
        text = canonical([self.name, self.rule, self.serial, *names])
        return b"#" + encode(sha256(text).digest()[:9])

    def with_members(
        self, *, members: Iterable[GroupMember] = (), operators: Iterable[GroupMember] = ()
    ) -> "SealedGroup":
        """Return the group with members and operators in place of those with one of their names."""
        members, operators = tuple(members), tuple(operators)
        rest = self.without({name for one in members + operators for name in one.names})
        group = replace(
            self,
            operators=_sorted((*rest.operators, *operators)),
            members=_sorted((*rest.members, *members)),
        )
        with errors_at(self.name):
            group._refuse_twice()
        return group

    def without(self, names: Collection[str]) -> "SealedGroup":
        """Return the group without members and operators that have one of these names."""
        return replace(
            self,
            operators=tuple(one for one in self.operators if not set(one.names) & set(names)),
            members=tuple(one for one in self.members if not set(one.names) & set(names)),
        )

    def _refuse_twice(self) -> None:
        if len(self.everybody) > MAX_MEMBERS:
            raise InvalidInputError(f"has more than {MAX_MEMBERS} members and operators")
        keys: dict[str, str] = {}
        names: set[str] = set()
        for one in self.everybody:
            if one.recipient in keys:
                raise InvalidInputError(
                    f"{keys[one.recipient]} and {one.label} have one key",
                    hint="each makes its own with 'localpuppet keys init'; machines cloned from one"
                    " image are a pool: '--pool NAME,NAME'",
                )
            if not names.isdisjoint(one.names):
                raise InvalidInputError(f"{one.label} is named twice")
            names.update(one.names)
            keys[one.recipient] = one.label


def parse_member_name(text: str, *, where: str = "") -> str:
    with errors_at(where):
        return SignerName.parse(text)


def parse_rule(text: str, *, where: str = "") -> str:
    """Return a rule: `all`, or terms separated by commas: `role=NAME`, the name of a node."""
    text = ",".join(part.strip() for part in text.split(","))
    if len(text) > MAX_RULE or not re.fullmatch(_RULE, text.encode("utf-8", "replace")):
        raise InvalidInputError(
            f"{text[:80]!r} is not a rule", where=where, hint="role=db, db01.example.com, or all"
        )
    return text


def _sorted(members: Iterable[GroupMember]) -> tuple[GroupMember, ...]:
    return tuple(sorted(members, key=lambda one: one.label))


def _members(form: bytes, data: bytes) -> tuple[GroupMember, ...]:
    """Return the members in some lines; the caller compares what they are written as."""
    return tuple(
        GroupMember(
            names=tuple(names.decode().split(",")),
            recipient=AgeRecipient(key.decode()),
            wrap=decode(wrapped),
        )
        for names, key, wrapped in re.findall(form, data)
    )
