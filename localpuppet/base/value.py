"""Values: frozen classes with named fields, made twenty times as fast as dataclasses.

The start of a command pays for each class that it loads: `apply` loads a hundred, and the methods
of a frozen dataclass with slots are generated, compiled and run again in each process (ADR 49).

Example:
    >>> class Kick(Value):
    ...     node: str
    ...     ttl: int = 0
    >>> Kick(node="a.example")
    Kick(node='a.example', ttl=0)
"""

import dataclasses
import sys
from collections.abc import Mapping
from dataclasses import MISSING, Field, FrozenInstanceError, field
from operator import attrgetter
from typing import Any, ClassVar, cast, dataclass_transform

_set = object.__setattr__


class _ValueType(type):
    """Takes the fields of a class from its annotations, and their defaults from its body."""

    def __new__(
        mcs, name: str, bases: tuple[type, ...], body: dict[str, Any], **options: object
    ) -> "_ValueType":
        fields: dict[str, Any] = {}
        for base in reversed(bases):
            fields |= getattr(base, "__value_fields__", {})
        inherited = set(fields)
        for key, annotation in _annotations(body).items():
            if getattr(annotation, "__origin__", annotation) is not ClassVar:
                fields[key] = body.pop(key, MISSING)
        body["__slots__"] = tuple(key for key in fields if key not in inherited)
        body["__value_fields__"] = fields
        body["__dataclass_fields__"] = _DataclassFields()
        body["__value_of__"] = attrgetter("__class__", *fields)  # a tuple with one field, too
        return super().__new__(mcs, name, bases, body, **options)


def _annotations(body: Mapping[str, Any]) -> Mapping[str, Any]:
    if sys.version_info >= (3, 14):
        import annotationlib

        annotate = annotationlib.get_annotate_from_class_namespace(body)
        if annotate is None:
            return {}
        return annotationlib.call_annotate_function(annotate, annotationlib.Format.FORWARDREF)
    return cast("Mapping[str, Any]", body.get("__annotations__", {}))


class _DataclassFields:
    """The fields in the form of `dataclasses`, for `replace`, `fields` and `asdict`; made late."""

    def __get__(self, _: object, owner: type["Value"]) -> dict[str, Field[Any]]:
        # Not by `dataclass`: from Python 3.13 on it loads `inspect`, for 11 ms.
        form = {}
        for name, default in owner.__value_fields__.items():
            one: Any = default if isinstance(default, Field) else field(default=default)
            one.name, one.type, one.kw_only = name, Any, True
            one._field_type = dataclasses._FIELD  # type: ignore[attr-defined]
            form[name] = one
        owner.__dataclass_fields__ = form
        return form


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class Value(metaclass=_ValueType):
    """A value: equal to another of its class with equal fields, and never changed.

    A subclass annotates its fields; they are passed by name. `field(default_factory=…)` and
    `__post_init__` are those of `dataclasses`, and `replace`, `fields` and `asdict` work.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    __value_fields__: ClassVar[dict[str, Any]]  # their defaults
    __value_of__: ClassVar[Any]

    def __init__(self, **values: Any) -> None:  # noqa: ANN401 - `dataclass_transform` has the types
        fields = self.__value_fields__
        for name, value in values.items():
            if name not in fields:
                raise TypeError(f"{type(self).__name__} has no field {name!r}")
            _set(self, name, value)
        if len(values) < len(fields):
            for name, default in fields.items():
                if name not in values:
                    _set(self, name, default_of(default, name))
        self.__post_init__()

    def __post_init__(self) -> None:
        """Check the fields."""

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __setstate__(self, state: tuple[None, Mapping[str, Any]]) -> None:
        for name, value in state[1].items():
            _set(self, name, value)

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return bool(self.__value_of__(self) == self.__value_of__(other))

    def __hash__(self) -> int:
        return hash(self.__value_of__(self))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__value_fields__)
        return f"{type(self).__qualname__}({fields})"


def default_of(default: Any, name: str = "") -> Any:  # noqa: ANN401 - a default of any type
    """Return the default of a field, called if it is a factory.

    Raises:
        TypeError: It has none.
    """
    if isinstance(default, Field):
        factory = default.default_factory
        default = default.default if factory is MISSING else factory()
    if default is MISSING:
        raise TypeError(f"the field {name!r} is missing")
    return default
