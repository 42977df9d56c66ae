"""Convert values to JSON objects and back, by the types of their fields.

Rules: a key is the name of a field; each key is needed, and no other is allowed; no value is
converted (a boolean is no integer); a text whose type has `parse` is parsed; a time has the form of
`show_time`; a named tuple is a list. `Annotated` adds how a field is read: a function that parses
its text, `AllowedRange`, `Key`, `Selected`, `ALWAYS` or a `JsonForm`.

A field with a default may be missing in a `JsonRecord`: an earlier version may not have had it. A
`Message`, which others write, too, is written without its defaults.

Example:
    >>> class Kick(Message):
    ...     WHERE, LIMIT = "kick", 1024
    ...     node: NodeName
    ...     hosts: Annotated[tuple[NodeName, ...], AllowedRange(maximum=8)] = ()
    >>> Kick(node=NodeName("a.example")).to_dict()
    {'node': 'a.example'}
"""

from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from datetime import datetime
from functools import cache
from math import isfinite
from pathlib import Path
from types import UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    NamedTuple,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from localpuppet.base.errors import InvalidInputError, LocalpuppetError
from localpuppet.base.formats.schema_number import check_schema, damage_errors, schema_problem
from localpuppet.base.formats.strict_json import compact, parse_object
from localpuppet.base.formats.text import breadcrumb_key
from localpuppet.base.formats.times import parse_time, show_time
from localpuppet.base.formats.values import Json, at, type_names, wrong_type
from localpuppet.base.value import Value, default_of

T = TypeVar("T")
ALWAYS = object()  # marks a field of a message that is written with its default, too
_PROBLEMS = (KeyError, TypeError, ValueError, AttributeError, LocalpuppetError)


class Key(str):
    """The key of a field, if it is not the field's name."""

    __slots__ = ()


class AllowedRange(NamedTuple):
    """The bounds of a number, or of the length of a list."""

    minimum: int | None = None
    maximum: int | None = None

    def __str__(self) -> str:
        lowest = "" if self.minimum is None else f" from {self.minimum}"
        return lowest if self.maximum is None else f"{lowest} to {self.maximum}"

    def has(self, number: float) -> bool:
        return (self.minimum is None or self.minimum <= number) and (
            self.maximum is None or number <= self.maximum
        )


class JsonForm(NamedTuple):
    """The JSON form of a type.

    Attributes:
        read: Returns a value; raises `LocalpuppetError`, `TypeError` or `ValueError` for another
            form.
        write: Returns the JSON form of a value; `None` if that is the value itself.
    """

    read: Callable[[Any], Any]
    write: Callable[[Any], Any] | None = None
    kinds: tuple[type, ...] = ()


class Selected(NamedTuple):
    """The forms of a field: the value of the field `by`, which is before it, selects one."""

    by: str
    forms: Mapping[str, type]
    other: type


class _Field(NamedTuple):
    name: str
    key: str
    form: JsonForm
    default: Any
    needed: bool
    selected: Selected | None


class _PlacedError(ValueError):
    """A problem and its place, which each object and list around it completes."""

    def __init__(self, place: str, error: Exception) -> None:
        super().__init__(place)
        self.place = place
        self.error = error

    @classmethod
    def at(cls, key: str | int, error: Exception) -> "_PlacedError":
        place = f"[{key}]" if isinstance(key, int) else key
        if isinstance(error, _PlacedError):
            return cls(_joined(place, error.place), error.error)
        return cls(place, error)


def _joined(outer: str, inner: str) -> str:
    return f"{outer}{inner}" if inner.startswith("[") else at(outer, inner)


class JsonRecord(Value):
    """A value that localpuppet writes.

    Attributes:
        SCHEMA: The number of its form, which is its first key; `None` for a part of a record.
        IS_OPEN: Whether keys without a field are ignored: later versions may write them.
    """

    SCHEMA: ClassVar[int | None] = None
    IS_OPEN: ClassVar[bool] = False

    def to_dict(self) -> dict[str, Any]:
        return to_record(self)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Self:
        """Return what `to_dict` wrote.

        Raises:
            StateError: It is damaged, or another version wrote it.
        """
        with damage_errors():
            if cls.SCHEMA is not None:
                check_schema(raw, cls.SCHEMA)
            return from_record(cls, raw)


class Message(JsonRecord):
    """A value that other programs write, too; LIMIT is its maximum size in bytes."""

    WHERE: ClassVar[str] = ""
    LIMIT: ClassVar[int] = 0

    @classmethod
    def parse(cls, payload: bytes) -> Self:
        """Return the message in some bytes.

        Raises:
            InvalidInputError: It is too large, ambiguous, or has another form.
        """
        return cls.read(parse_object(payload, where=cls.WHERE, limit=cls.LIMIT))

    @classmethod
    def read(cls, raw: object, *, where: str = "") -> Self:
        """Return the message in an object; see `from_record`."""
        return from_record(cls, raw, where=where or cls.WHERE)

    def to_payload(self) -> bytes:
        """Return the bytes to sign and send: ASCII JSON without white space."""
        return compact(self.to_dict()).encode("ascii")


def to_record(value: object) -> dict[str, Any]:
    return _object_of(type(value)).write(value)


def from_record(form: type[T], raw: object, *, where: str = "") -> T:
    """Return the value of a JSON object.

    Raises:
        InvalidInputError: The object has another form; the message has the place of the problem.
    """
    known: Any = form
    read = form_of(known).read
    try:
        value: T = read(raw)
    except _PROBLEMS as error:
        raise _located(error, where) from error
    return value


def register_form(
    form: object,
    *,
    read: Callable[[Any], object],
    write: Callable[[Any], object] | None = None,
) -> None:
    """Give a type another JSON form, before its first use in a record; see `JsonForm`."""
    _FORMS[form] = JsonForm(read, write)


def _located(error: Exception, where: str) -> InvalidInputError:
    if isinstance(error, _PlacedError):
        where, error = _joined(where, error.place), error.error
    if not isinstance(error, LocalpuppetError):
        return InvalidInputError(str(error), where=where)
    place = ": ".join(filter(None, (where, error.where)))
    return InvalidInputError(error.what, where=place, hint=error.hint)


class _Object:
    """The JSON form of a class: an object."""

    def __init__(self, form: Any) -> None:  # noqa: ANN401 - a dataclass or value
        self._class = form
        self._schema: int | None = getattr(form, "SCHEMA", None)
        self._is_open: bool = getattr(form, "IS_OPEN", False)
        self._head = {} if self._schema is None else {"schema": self._schema}
        types = _types_of(form)
        # Not `fields` of a value, for which `dataclasses` would make a class first.
        listed = getattr(form, "__value_fields__", None) or {
            one.name: one.default for one in fields(form)
        }
        self._fields = [_field(form, key, listed[key], types[key]) for key in listed]
        self._keys = {*self._head, *(field.key for field in self._fields)}
        self._needed = {field.key for field in self._fields if field.needed}

    def read(self, raw: Any) -> Any:  # noqa: ANN401
        self._check_keys(raw)
        values = {}
        for name, key, (read, _, _), _, _, selected in self._fields:
            if key not in raw:
                continue
            if selected is not None:
                read = _object_of(selected.forms.get(raw[selected.by], selected.other)).read
            try:
                values[name] = read(raw[key])
            except _PROBLEMS as error:
                raise _PlacedError.at(key, error) from error
        try:
            return self._class(**values)
        except LocalpuppetError as error:
            if not error.where:
                raise
            raise _PlacedError(error.where, type(error)(error.what, hint=error.hint)) from error

    def _check_keys(self, raw: Any) -> None:  # noqa: ANN401
        if not isinstance(raw, dict):
            raise wrong_type(raw, "a mapping", "")
        if self._schema and (problem := schema_problem(raw.get("schema"), self._schema)):
            raise InvalidInputError(problem)
        if not self._is_open and not raw.keys() <= self._keys:
            raise InvalidInputError(f"unknown key {min(raw.keys() - self._keys)[:60]!r}")
        if not self._needed <= raw.keys():
            missing = next(
                member.key for member in self._fields if member.key in self._needed - raw.keys()
            )
            raise InvalidInputError(f"the key {missing!r} is missing")

    def write(self, value: object) -> dict[str, Any]:
        record: dict[str, Any] = self._head.copy()
        for name, key, (_, write, _), default, _, _ in self._fields:
            member = getattr(value, name)
            if default is MISSING or member != default:
                record[key] = member if write is None else write(member)
        return record


def _types_of(form: Any) -> dict[str, Any]:  # noqa: ANN401 - a class of any kind
    # `Json` names itself, also where it is not imported.
    return get_type_hints(form, localns={"Json": Json}, include_extras=True)


def _field(owner: type, name: str, default: Any, form: Any) -> _Field:  # noqa: ANN401 - any type
    marks = getattr(form, "__metadata__", ())
    key = next((mark for mark in marks if isinstance(mark, Key)), name)
    selected = next((mark for mark in marks if isinstance(mark, Selected)), None)
    optional = default is not MISSING
    sparse = optional and issubclass(owner, Message) and ALWAYS not in marks
    needed = not (optional and issubclass(owner, JsonRecord))
    json_form = JsonForm(_as_it_is, to_record) if selected else form_of(form)
    written = default_of(default) if sparse else MISSING
    return _Field(name, str(key), json_form, written, needed, selected)


_OBJECTS: dict[Any, _Object] = {}


def _object_of(form: Any) -> _Object:  # noqa: ANN401 - a dataclass or value
    if form not in _OBJECTS:
        _OBJECTS[form] = _Object(form)
    return _OBJECTS[form]


@cache
def form_of(form: Any) -> JsonForm:  # noqa: ANN401 - a type of any kind
    if form in _FORMS:
        return _FORMS[form]
    origin, args = get_origin(form), get_args(form)
    if origin is Annotated:
        return _annotated(*args)
    if origin in (UnionType, Union):
        return _union(args)
    if origin is tuple and args[1:] == (Ellipsis,):
        return _list(tuple, args[0])
    if origin in (list, frozenset):
        return _list(origin, args[0])
    if origin in (dict, Mapping):
        is_any = args[0] is str and form_of(args[1]) is _FORMS[Json]
        return JsonForm(_object, dict, (dict,)) if is_any else _mapping(*args)
    if issubclass(form, str):
        return text_form(getattr(form, "parse", form))
    if issubclass(form, tuple):
        return _named_tuple(form)
    if issubclass(form, Value) or is_dataclass(form):
        # Looked up late: a class may have a field of the same type.
        return JsonForm(lambda raw: _object_of(form).read(raw), to_record, (dict,))
    raise TypeError(f"{form} has no JSON form")


def _annotated(form: Any, *marks: object) -> JsonForm:  # noqa: ANN401 - a type of any kind
    for mark in marks:
        if isinstance(mark, JsonForm):
            return mark
        if isinstance(mark, AllowedRange):
            number = form in (int, float)
            return _limited_number(form, mark) if number else _limited_list(form_of(form), mark)
        if callable(mark):
            return text_form(mark)
    return form_of(form)


def _limited_number(form: type, bounds: AllowedRange) -> JsonForm:
    wanted = f"{'an integer' if form is int else 'a number'}{bounds}"
    read_number = _exactly(wanted, int).read if form is int else _number

    def read(raw: object) -> Any:  # noqa: ANN401 - an `int` or a `float`
        number = read_number(raw)
        if not bounds.has(number):
            raise InvalidInputError(f"is {number}, must be {wanted}")
        return number

    return JsonForm(read, None, form_of(form).kinds)


def _limited_list(form: JsonForm, bounds: AllowedRange) -> JsonForm:
    def read(raw: Any) -> Any:  # noqa: ANN401
        if isinstance(raw, list) and not bounds.has(len(raw)):
            allowed = f"{bounds.minimum or 0} to {bounds.maximum}"
            raise InvalidInputError(f"has {len(raw)} elements; {allowed} are allowed")
        return form.read(raw)

    return JsonForm(read, form.write, form.kinds)


def _union(forms: tuple[Any, ...]) -> JsonForm:
    if {bool, int, float, str} <= {*forms}:
        return _FORMS[Json]
    kinds = [form_of(form) for form in forms if form is not type(None)]
    if len(kinds) == 1:
        ((read, write, accepted),) = kinds
        return JsonForm(
            lambda raw: None if raw is None else read(raw),
            write and (lambda value: None if value is None else write(value)),
            (*accepted, type(None)),
        )
    accepted = tuple(kind for form in kinds for kind in form.kinds)
    by_kind = {kind: form.read for form in kinds for kind in form.kinds}
    wanted = " or ".join(
        "an integer" if kind is int else f"a {type_names[kind]}" for kind in accepted
    )
    if type(None) in forms:
        by_kind[type(None)] = _as_it_is

    def read_any(raw: Any) -> Any:  # noqa: ANN401
        if type(raw) in by_kind:
            return by_kind[type(raw)](raw)
        raise wrong_type(raw, wanted, "")

    return JsonForm(read_any, None, accepted)


def _list(container: Callable[[Iterable[Any]], Any], item: object) -> JsonForm:
    read_item, write_item, _ = form_of(item)

    def read(raw: Any) -> Any:  # noqa: ANN401
        if not isinstance(raw, list):
            raise wrong_type(raw, "a list", "")
        try:
            return container(map(read_item, raw))
        except _PROBLEMS:
            for index, value in enumerate(raw):
                _placed_read(read_item, value, index)
            raise

    return JsonForm(
        read, lambda values: [*map(write_item, values)] if write_item else [*values], (list,)
    )


def _mapping(key: object, item: object) -> JsonForm:
    read_key, read_item, write_item = form_of(key).read, form_of(item).read, form_of(item).write

    def read(raw: Any) -> Any:  # noqa: ANN401
        if not isinstance(raw, dict):
            raise wrong_type(raw, "a mapping", "")
        try:
            return {read_key(name): read_item(value) for name, value in raw.items()}
        except _PROBLEMS:
            for name, value in raw.items():
                _placed_read(read_key, name, breadcrumb_key(name))
                _placed_read(read_item, value, breadcrumb_key(name))
            raise

    def write(values: Mapping[Any, Any]) -> dict[str, Any]:
        return {
            str(name): value if write_item is None else write_item(value)
            for name, value in values.items()
        }

    return JsonForm(read, write, (dict,))


def _named_tuple(form: Any) -> JsonForm:  # noqa: ANN401 - a class of any kind
    members = [form_of(member) for member in _types_of(form).values()]

    def read(raw: Any) -> Any:  # noqa: ANN401
        if not isinstance(raw, list):
            raise wrong_type(raw, "a list", "")
        if len(raw) != len(members):
            raise InvalidInputError(f"has {len(raw)} elements, must have {len(members)}")
        return form(
            *(
                _placed_read(member.read, value, index)
                for index, (member, value) in enumerate(zip(members, raw, strict=True))
            )
        )

    def write(value: Any) -> list[Any]:  # noqa: ANN401
        pairs = zip(members, value, strict=True)
        return [item if member.write is None else member.write(item) for member, item in pairs]

    return JsonForm(read, write, (list,))


def _placed_read(read: Callable[[Any], T], raw: object, key: str | int) -> T:
    try:
        return read(raw)
    except _PROBLEMS as error:
        raise _PlacedError.at(key, error) from error


def text_form(parse: Callable[[str], object], *, write: Callable[[Any], object] = str) -> JsonForm:

    def read(raw: Any) -> object:  # noqa: ANN401
        if not isinstance(raw, str):
            raise wrong_type(raw, "a string", "")
        return parse(raw)

    return JsonForm(read, write, (str,))


def _exactly(noun: str, *kinds: type) -> JsonForm:
    def read(raw: Any) -> Any:  # noqa: ANN401
        # A boolean is an `int` for Python.
        if type(raw) not in kinds:
            raise wrong_type(raw, noun, "")
        return raw

    return JsonForm(read, None, kinds)


def _as_it_is(raw: object) -> object:
    return raw


def _object(raw: Any) -> dict[str, Json]:  # noqa: ANN401
    if not isinstance(raw, dict):
        raise wrong_type(raw, "a mapping", "")
    return raw


def _number(raw: Any) -> float:  # noqa: ANN401
    if type(raw) not in (int, float) or not isfinite(raw):
        raise wrong_type(raw, "a number", "")
    number: float = raw
    return number


def _bytes(text: str) -> bytes:
    """Return the bytes in a text in base64."""
    try:
        return a2b_base64(text.encode(), strict_mode=True)
    except ValueError as error:
        raise InvalidInputError("is not base64") from error


_FORMS: dict[Any, JsonForm] = {
    bytes: text_form(_bytes, write=lambda data: b2a_base64(data, newline=False).decode("ascii")),
    str: text_form(str),
    int: _exactly("an integer", int),
    bool: _exactly("true or false", bool),
    float: JsonForm(_number, None, (int, float)),
    datetime: text_form(parse_time, write=show_time),
    Path: text_form(Path),
    list: _exactly("a list", list),
    dict: _exactly("a mapping", dict),
    **dict.fromkeys((Json, Any, object), JsonForm(_as_it_is)),
}
