"""A group: who opens a set of sealed values, one file `sealed/groups/NAME.yaml` in a release.

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
next serial. Only these bytes are valid: see `value_file`.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256

from localpuppet.base.errors import InvalidInputError, check_limit, errors_at
from localpuppet.base.formats.names import SignerName
from localpuppet.base.formats.strict_json import canonical
from localpuppet.base.value import Value
from localpuppet.node.sealed import age
from localpuppet.node.sealed.value_file import BASE64, NUMBER, decode, encode, parse_group_name

SCHEMA = 1
MAX_GROUP_FILE = 16 * 1024 * 1024
MAX_MEMBERS = 20_000
MAX_RULE = 1024

_NAMES = rb"[a-z0-9_][a-z0-9_.@-]*(?:,[a-z0-9_][a-z0-9_.@-]*)*"
_LINES = rb"  (%b) (%b):\n   (%b)\n"
_MEMBER = _LINES % (_NAMES, age.RECIPIENT.encode(), BASE64)
_OPERATOR = _LINES % (_NAMES, rb"age1[a-z0-9.+_-]{58,480}", BASE64)
_TERM = rb"[A-Za-z0-9_.:@=+-]+(?: [A-Za-z0-9_.:@=+-]+)*"
_RULE = rb"%b(?:,%b)*" % (_TERM, _TERM)
_HEAD = rb"""schema: 1
rule: "(%b)"
recipient: (%b)
serial: (%b)
operators:
""" % (_RULE, age.RECIPIENT.encode(), NUMBER)


class GroupMember(Value):
    """A holder of a wrapped identity: an operator, a node, or a pool.

    Attributes:
        names: The name, or the names of the nodes of a pool, which share one key (cloned images).
        wrap: A binary age file with the group's identity.
    """

    names: tuple[str, ...]
    recipient: age.AgeRecipient
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
    recipient: age.AgeRecipient
    serial: int
    operators: tuple[GroupMember, ...]
    members: tuple[GroupMember, ...]

    @classmethod
    def parse(cls, data: bytes, *, name: str) -> "SealedGroup":
        """Return the group in a file.

        Raises:
            InvalidInputError: The bytes are not those that `to_bytes` writes.
        """
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
                recipient=age.AgeRecipient(head[2].decode()),
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
        """Return the file."""
        head = f'schema: {SCHEMA}\nrule: "{self.rule}"\nrecipient: {self.recipient}\n'
        lines = [f"{head}serial: {self.serial}\noperators:\n".encode()]
        lines += [one.to_bytes() for one in _sorted(self.operators)]
        lines.append(b"members:\n")
        lines += [one.to_bytes() for one in _sorted(self.members)]
        return b"".join(lines)

    @property
    def everybody(self) -> tuple[GroupMember, ...]:
        """Operators and members."""
        return self.operators + self.members

    @property
    def by_name(self) -> dict[str, GroupMember]:
        """Members by name; the names of a pool have one member."""
        return {name: one for one in self.members for name in one.names}

    def opened_by(self, identities: Sequence[age.AgeIdentity]) -> age.AgeIdentity | None:
        """Return the identity of the group; `None` if no wrap for them contains it.

        A wrap counts only if it has the identity behind `recipient`, and was made for this group,
        rule, serial and name: the author of another one could read what is sealed next.

        Args:
            identities: Of a node or an operator.
        """
        plugins = any(one.is_plugin for one in identities)
        own = {one.recipient for one in identities if not one.is_plugin}
        for one in self.everybody:
            if one.recipient in own or (plugins and one.recipient.plugin):
                with suppress(InvalidInputError):
                    head, _, secret = age.open_sealed(one.wrap, identities).partition(b"\n")
                    identity = age.AgeIdentity.parse(secret.decode("ascii", "replace").rstrip("\n"))
                    if (head, identity.recipient) == (self._bound(one.names), self.recipient):
                        return identity
        return None

    def wrap(
        self, identity: age.AgeIdentity, names: Sequence[str], recipient: age.AgeRecipient
    ) -> GroupMember:
        """Wrap the identity of the group for a member."""
        names = tuple(sorted(names))
        sealed = age.seal(self._bound(names) + f"\n{identity}\n".encode(), recipient)
        return GroupMember(names=names, recipient=recipient, wrap=sealed)

    def _bound(self, names: tuple[str, ...]) -> bytes:
        """Return what a wrap repeats, shortened by a digest: a comment in a file of identities."""
        text = canonical([self.name, self.rule, self.serial, *names])
        return b"#" + encode(sha256(text).digest()[:9])

    def with_members(
        self, *, members: Iterable[GroupMember] = (), operators: Iterable[GroupMember] = ()
    ) -> "SealedGroup":
        """Return the group with members and operators, in place of those with one of their names.

        Raises:
            InvalidInputError: Two of them have one key, or one name.
        """
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
    """Return the name of a member or an operator."""
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
            recipient=age.AgeRecipient(key.decode()),
            wrap=decode(wrapped),
        )
        for names, key, wrapped in re.findall(form, data)
    )
