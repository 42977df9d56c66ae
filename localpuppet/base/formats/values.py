"""JSON values: their type, the names of their types, and breadcrumbs of places in them."""

from collections.abc import Mapping

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


def mapping_of(value: object) -> Mapping[str, Json]:
    """Return `value` if it is a mapping; an empty mapping otherwise."""
    return value if isinstance(value, dict) else {}
