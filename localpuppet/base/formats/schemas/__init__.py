"""JSON Schemas of the files that users write, and messages that say what to do.

Grammars of single values and rules between fields are in the packages of those values. jsonschema
is imported only when a document is checked: it costs 90 ms, and `formats.documents` caches what it
accepted.
"""

import json
from collections.abc import Iterable, Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import did_you_mean
from localpuppet.base.formats.text import breadcrumb_key, one_line, shown_key
from localpuppet.base.formats.values import Json, at, type_names

if TYPE_CHECKING:
    from jsonschema import ValidationError

FOUND = 100
_SIMPLE = {
    "minimum": "must be at least {}",
    "exclusiveMinimum": "must be more than {}",
    "maximum": "must be at most {}",
    "minLength": "must have at least {} characters",
    "minItems": "must have at least {} entries",
    "maxLength": "must have at most {} characters",
    "pattern": "has a character that is not allowed there",
}
_NOUNS = {"object": "mapping", "array": "list", "integer": "whole number"}


@cache
def load(name: str) -> dict[str, Any]:
    """Return the schema `name` ("input", "manifest", …)."""
    text = (Path(__file__).parent / f"{name}.schema.json").read_text("utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def with_defaults(raw: Mapping[str, Any], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with the defaults of its schema, at all levels."""
    full = dict(raw)
    for key, part in schema["properties"].items():
        inner = full.get(key, {})
        if "default" in part:
            full.setdefault(key, part["default"])
        elif "properties" in part and isinstance(inner, dict):
            full[key] = with_defaults(inner, part)
    return full


def check(value: Json, *, schema: str, where: str) -> None:
    """Check a document against the schema `schema`.

    Of the first `FOUND` errors, the message reports the one that explains most.
    """
    import jsonschema
    from referencing import Registry, Resource

    registry: Registry[Any] = Registry(
        retrieve=lambda uri: Resource.from_contents(load(uri.removesuffix(".schema.json")))
    )  # type: ignore[call-arg]
    validator = jsonschema.Draft202012Validator(load(schema), registry=registry)
    # Each error holds a text about its value: all errors of a document that is wrong everywhere
    # would take gigabytes.
    error = min(islice(validator.iter_errors(value), FOUND), key=_order, default=None)
    if error is not None:
        raise _refusal(_meant(error), where)


def _order(error: "ValidationError") -> tuple[bool, list[str]]:
    # Missing keys are reported last: `Classes:` explains why `classes` is missing.
    return (error.validator == "required", [str(step) for step in error.absolute_path])


def _meant(error: "ValidationError") -> "ValidationError":
    """Return the error in the alternative that has the value's type; without one, the error."""
    inner = [
        part
        for part in error.context or ()
        if part.relative_path or part.validator not in ("type", "const")
    ]
    return min(inner, key=_order, default=error)


def _refusal(error: "ValidationError", where: str) -> InvalidInputError:
    crumb = ""
    for step in error.absolute_path:
        crumb = at(crumb, breadcrumb_key(step) if isinstance(step, str) else step)
    place = f"{where}: {one_line(crumb)[:200]}" if crumb else where
    what, hint = _words(error)
    hint = hint or cast("dict[str, Any]", error.schema).get("$comment", "")
    return InvalidInputError(one_line(what), where=place, hint=one_line(hint))


def _words(error: "ValidationError") -> tuple[str, str]:
    instance: Any = error.instance
    rule: Any = error.validator_value
    if error.validator == "type":
        types: Iterable[str] = [rule] if isinstance(rule, str) else rule
        wanted = " or ".join(f"a {_NOUNS.get(name, name)}" for name in types if name != "null")
        return f"must be {wanted}, not {_type_of(instance)}", ""
    if error.validator == "anyOf":
        forms = [_form(form) for form in rule]
        return f"must be {' or '.join(forms)}, not {_type_of(instance)}", ""
    if error.validator == "additionalProperties":
        known = cast("dict[str, Any]", error.schema).get("properties", {})
        unknown = next(key for key in instance if key not in known)
        return f"unknown key {shown_key(unknown)}", _cure(unknown, known)
    if error.validator == "required":
        missing = next(key for key in rule if key not in instance)
        return f"the key {missing!r} is missing (required)", ""
    if error.validator == "maxItems":
        return f"has too many entries: {len(instance)}, at most {rule}", ""
    if error.validator == "enum":
        return f"must be one of {', '.join(map(str, rule))}", ""
    if error.validator in ("minLength", "minItems") and rule == 1:
        return "must not be empty", ""
    simple = _SIMPLE.get(str(error.validator))
    if simple is not None:
        is_name = "propertyNames" in error.schema_path
        name = f"the name {shown_key(instance)} " if is_name else ""
        return name + simple.format(rule), ""
    # The library's own message repeats the value, which may be a secret.
    return f"has an invalid form for a {type_names[type(instance)]}", ""


def _type_of(value: object) -> str:
    return "null" if value is None else f"a {type_names[type(value)]}"


def _form(rule: Mapping[str, Any]) -> str:
    """Return what one of several alternatives accepts, for messages."""
    if "const" in rule:
        return json.dumps(rule["const"])
    return f"a {_NOUNS.get(rule['type'], rule['type'])}"


def _cure(unknown: str, known: Mapping[str, Any]) -> str:
    """Return where an unknown key belongs, or the known key that it may mean."""
    above = [key for key, inner in known.items() if unknown in inner.get("properties", {})]
    if above:
        return f"write it below {' or '.join(map(repr, above))}"
    return did_you_mean(unknown, sorted(known))
