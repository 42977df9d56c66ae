"""Convert localpuppet's own records to JSON objects and back, by the types of their fields.

For records that only localpuppet writes: journals, checkpoints, its own state. What others write
is read field by field, with its limits (`base.formats.fields`).

Rules: a key is the name of a field; each key must be there, and no other; no value is converted (a
boolean is no integer); names and other texts with a `parse` are parsed; a time has the form of
`show_time`; a named tuple is a list.

Example:
    >>> to_record(AwaitedEntry(node=NodeName("a.example"), digest="ab", at=1.5))
    {'node': 'a.example', 'digest': 'ab', 'at': 1.5}
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from functools import partial
from math import isfinite
from operator import eq
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin

from cattrs import BaseValidationError, Converter, ForbiddenExtraKeysError, transform_error
from cattrs.cols import homogenous_tuple_structure_factory
from cattrs.gen import make_dict_structure_fn

from localpuppet.base.errors import InvalidInputError, LocalpuppetError
from localpuppet.base.formats.schema_number import damage_errors, without_schema
from localpuppet.base.formats.times import parse_time, show_time
from localpuppet.base.formats.values import Json

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
MOST = 3  # problems in a message
_PROBLEMS = (KeyError, TypeError, ValueError)
_CONVERTER = Converter(forbid_extra_keys=True)


def to_record(value: object) -> dict[str, Any]:
    """Return the JSON object of a dataclass."""
    record: dict[str, Any] = _CONVERTER.unstructure(value)
    return record


def from_record(form: type[T], raw: object) -> T:
    """Return the dataclass of a JSON object.

    Raises:
        InvalidInputError: The object has another form; the message has the place of each problem.
    """
    try:
        return _CONVERTER.structure(raw, form)
    except (BaseValidationError, LocalpuppetError, *_PROBLEMS) as error:
        problems = transform_error(error, path="", format_exception=_problem)
        raise InvalidInputError("; ".join(problems[:MOST])) from error


def to_stored_record(value: object, *, schema: int) -> dict[str, Any]:
    """Return the JSON object of a dataclass, with the number of its form."""
    return {"schema": schema, **to_record(value)}


def from_stored_record(form: type[T], raw: Mapping[str, Any], *, schema: int) -> T:
    """Return the dataclass of a JSON object that this node wrote.

    Raises:
        StateError: The object has another number or another form.
    """
    with damage_errors():
        return from_record(form, without_schema(raw, schema))


def register_form(
    form: object,
    *,
    read: Callable[[Any], object],
    write: Callable[[Any], object] | None = None,
) -> None:
    """Give a type another JSON form, before its first use in a record.

    Args:
        form: The type.
        read: Returns a value; raises `LocalpuppetError`, `TypeError` or `ValueError` for another
            form.
        write: Returns the JSON form of a value; `None` if that follows from its type.
    """
    _CONVERTER.register_structure_hook_func(partial(eq, form), lambda raw, _: read(raw))
    if write is not None:
        _CONVERTER.register_unstructure_hook_func(partial(eq, form), write)


def _problem(error: BaseException, _form: object) -> str:
    if isinstance(error, ForbiddenExtraKeysError):
        return f"unknown key {min(error.extra_fields)!r:.60}"
    return f"is missing: {error}" if isinstance(error, KeyError) else str(error)


def _exactly(form: type[T], noun: str) -> Callable[[Json, object], T]:
    def read(raw: Json, _: object) -> T:
        # A boolean is an `int` for Python.
        if isinstance(raw, form) and (form is bool or not isinstance(raw, bool)):
            return raw
        raise TypeError(f"must be {noun}")

    return read


def _number(raw: Json, _: object) -> float:
    if isinstance(raw, int | float) and not isinstance(raw, bool) and isfinite(raw):
        return raw
    raise TypeError("must be a number")


def _text(raw: Json, form: type[str]) -> str:
    if not isinstance(raw, str):
        raise TypeError("must be a string")
    parse: Callable[[str], str] = getattr(form, "parse", form)
    return parse(raw)


def _complete(form: type["DataclassInstance"]) -> Callable[[Json, object], "DataclassInstance"]:
    read = make_dict_structure_fn(form, _CONVERTER)
    keys = [field.name for field in fields(form)]

    def read_complete(raw: Json, _: object) -> "DataclassInstance":
        if not isinstance(raw, dict):
            raise TypeError("must be an object")
        for key in keys:
            if key not in raw:
                raise KeyError(key)
        return read(raw, form)

    return read_complete


def _is_list(form: object) -> bool:
    return get_origin(form) is tuple and get_args(form)[1:] == (Ellipsis,)


def _list(form: Any) -> Callable[[Json, object], Sequence[Any]]:  # noqa: ANN401 - a type form
    read = homogenous_tuple_structure_factory(form, _CONVERTER)

    def read_list(raw: Json, _: object) -> Sequence[Any]:
        if not isinstance(raw, list):
            raise TypeError("must be a list")
        values: Sequence[Any] = read(raw, form)
        return values

    return read_list


# A hook of a class is one of its subclasses, too: names and enumerations are texts.
_CONVERTER.register_structure_hook(str, _text)
_CONVERTER.register_structure_hook(int, _exactly(int, "an integer"))
_CONVERTER.register_structure_hook(bool, _exactly(bool, "true or false"))
_CONVERTER.register_structure_hook(float, _number)
_CONVERTER.register_structure_hook_factory(is_dataclass, _complete)
_CONVERTER.register_structure_hook_factory(_is_list, _list)
register_form(datetime, read=lambda raw: parse_time(_text(raw, str)), write=show_time)
