"""JSON values: their type, the names of their types, and breadcrumbs of places in them."""

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from localpuppet.base.errors import InvalidInputError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

type_names = {
    dict: "mapping",
    list: "list",
    str: "string",
    bool: "boolean",
    int: "number",
    float: "number",
    type(None): "null",
}
Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


def at(where: str, key: "str | int") -> str:
    """Return the breadcrumb of an element: `classes.foo`, `packages[3]`."""
    if isinstance(key, int):
        return f"{where}[{key}]"
    return f"{where}.{key}" if where else key


def field_values(value: "DataclassInstance") -> dict[str, Any]:
    """Return the fields of a dataclass by name: tuples as lists, and all else as it is."""
    pairs = ((field.name, getattr(value, field.name)) for field in fields(value))
    return {
        name: list(field_value) if type(field_value) is tuple else field_value
        for name, field_value in pairs
    }


def wrong_type(value: Json, wanted: str, where: str) -> InvalidInputError:
    """Return the error for a value that is not `wanted`; the message has the type, no value."""
    return InvalidInputError(f"must be {wanted}, not a {type_names[type(value)]}", where=where)


def mapping_of(value: object) -> Mapping[str, Json]:
    """Return `value` if it is a mapping; an empty mapping otherwise."""
    return value if isinstance(value, dict) else {}
