"""A sealed value: one file `sealed/values/LEVEL/KEY.yaml` in a release.

    schema: 1
    group: "role=db"
    serial: 2
    number: 5
    type: string
    age: YWdlLWVuY3J5cHRpb24ub3JnL3YxCi0+…

- Only these bytes are valid: writing what was read gives the same file, so that no character can
  change unnoticed.
- The plaintext repeats all that is in clear, the path and the group's recipient. The holder of
  a key refuses a value that was moved to another key, group or number.
- The plaintext is padded: its size says only whether the value has up to 64 bytes, 128, 256, and so
  on.

`age -d` shows the plaintext to a person: JSON, the value at its end.
"""

import re
from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from collections.abc import Sequence
from enum import StrEnum

from localpuppet.base.errors import InvalidInputError, check_limit, errors_at
from localpuppet.base.formats.strict_json import canonical, parse_object
from localpuppet.base.formats.values import Json
from localpuppet.base.value import Value
from localpuppet.node.sealed.age import MAX_PLAINTEXT, AgeIdentity, AgeRecipient, open_sealed, seal

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
    """Return the bytes in canonical base64.

    Raises:
        InvalidInputError: Another text would have the same bytes.
    """
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
        """Return the value in a file.

        Args:
            path: Where the file is, see `path` above.

        Raises:
            InvalidInputError: The bytes are not those that `to_bytes` writes.
        """
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
        """Return the file."""
        head = f'schema: {SCHEMA}\ngroup: "{self.group}"\nserial: {self.serial}\n'
        tail = f"number: {self.number}\ntype: {self.type}\nage: "
        return (head + tail).encode() + encode(self.age) + b"\n"

    def seal(self, content: bytes, recipient: AgeRecipient) -> "SealedValue":
        """Return this value with a content.

        Args:
            content: What `content_of` returns.
            recipient: That of the group with this serial.
        """
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
        return SealedValue(
            path=self.path,
            group=self.group,
            serial=self.serial,
            number=self.number,
            type=self.type,
            age=seal(text, recipient),
        )

    def open(self, recipient: AgeRecipient, identities: Sequence[AgeIdentity]) -> bytes:
        """Return the content.

        Args:
            recipient: That of the group with this serial.

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
