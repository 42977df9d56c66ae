"""Dataclasses that say with each field how it is read from JSON, for messages of other programs.

Rules: a field with a default may be missing, and is not written if it has that value; an unknown
key is an error; `fields` has the rules of single values.

Example:
    >>> @dataclass(frozen=True, slots=True, kw_only=True)
    ... class Kick(JsonForm):
    ...     node: NodeName = field(metadata=parsed(NodeName.parse))
    ...     ttl: int = field(default=0, metadata=integer(minimum=1))
    >>> Kick(node=NodeName("a.example")).to_dict()
    {'node': 'a.example'}
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, ClassVar, Self, cast

from localpuppet.base.formats.fields import Fields
from localpuppet.base.formats.values import Json

FieldForm = Mapping[str, Any]


def read_by(
    read: Callable[[Fields, str], object],
    *,
    write: Callable[[Any], Json] | None = None,
    key: str = "",
    always: bool = False,
) -> FieldForm:
    """Return the metadata of a field.

    Args:
        read: Reads the value of a key.
        write: Returns the JSON form of a value; `None` if that follows from its type.
        key: The key; by default the name of the field.
        always: Whether the default is written, too.
    """
    return {"read": read, "write": write or _written, "key": key, "always": always}


def parsed(
    parse: Callable[[str], object], *, write: Callable[[Any], Json] | None = None, key: str = ""
) -> FieldForm:
    """Return the metadata of a field that is a string; see `Fields.parsed`."""
    return read_by(lambda raw, name: raw.parsed(name, parse), write=write, key=key)


def parsed_list(parse: Callable[[str], object], *, minimum: int = 0, maximum: int) -> FieldForm:
    """Return the metadata of a field that is a list of strings; see `Fields.parsed_list`."""
    return read_by(lambda raw, name: raw.parsed_list(name, parse, minimum=minimum, maximum=maximum))


def integer(
    *, minimum: int | None = None, maximum: int | None = None, always: bool = False
) -> FieldForm:
    """Return the metadata of a field that is an integer; see `Fields.integer`."""
    return read_by(
        lambda raw, name: raw.integer(name, minimum=minimum, maximum=maximum), always=always
    )


class JsonForm:
    """A dataclass with such fields.

    Attributes:
        SCHEMA: The number of its form, which is its first key; `None` for a part of a message.
    """

    __slots__ = ()
    SCHEMA: ClassVar[int | None] = None

    @classmethod
    def read(cls, raw: Fields) -> Self:
        """Read the value.

        Raises:
            InvalidInputError: A field is missing, unknown or invalid.
        """
        members = {_key(member): member for member in fields(cast("Any", cls))}
        if cls.SCHEMA is not None:
            raw.schema(cls.SCHEMA)
        raw.only(members.keys() if cls.SCHEMA is None else members.keys() | {"schema"})
        return cls(
            **{
                member.name: member.metadata["read"](raw, key)
                for key, member in members.items()
                if key in raw or _default(member) is MISSING
            }
        )

    def to_dict(self) -> dict[str, Json]:
        """Return the JSON form."""
        values: dict[str, Json] = {} if self.SCHEMA is None else {"schema": self.SCHEMA}
        for member in fields(cast("Any", self)):
            value = getattr(self, member.name)
            if member.metadata["always"] or value != _default(member):
                values[_key(member)] = member.metadata["write"](value)
        return values


def _key(member: Any) -> str:  # noqa: ANN401 - a field of any type
    return member.metadata["key"] or str(member.name)


def _default(member: Any) -> object:  # noqa: ANN401 - a field of any type
    return member.default if member.default_factory is MISSING else member.default_factory()


def _written(value: Any) -> Json:  # noqa: ANN401 - a value of any field
    if isinstance(value, str):
        return str(value)
    if isinstance(value, tuple):
        return [_written(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _written(item) for key, item in value.items()}
    return value.to_dict() if isinstance(value, JsonForm) else value
