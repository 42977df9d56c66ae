"""Resolves `%{name}` in values, with limits on chains and growth."""

import re
from collections.abc import Callable, Iterator, Mapping

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.values import Json, at, type_names

MAX_CHAIN = 50
MAX_EXPANSION = 1024 * 1024
_REFERENCE = re.compile(r"%\{([^{}]*)\}")
_LITERAL = re.compile(r"literal\((['\"])(.*)\1\)\Z", re.DOTALL)
_VARIABLE = re.compile(r"[a-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*\Z")


def interpolate(value: Json, lookup: Callable[[str, str], str], *, where: str) -> Json:
    """Return `value` with every `%{name}` in its strings replaced.

    `%{literal('%')}` is a percent sign, as in Hiera
    (https://www.puppet.com/docs/puppet/7/hiera_merging.html#interpolation_functions).

    Args:
        value: Any JSON value; keys of mappings stay.
        lookup: Called with the name and the breadcrumb; returns the text.
        where: The breadcrumb of `value`.

    Raises:
        InvalidInputError: The text in the braces is not a name, or `lookup` rejects it.
    """
    if isinstance(value, str):
        return _interpolate_text(value, lookup, where) if "%{" in value else value
    if isinstance(value, list):
        return [interpolate(item, lookup, where=at(where, i)) for i, item in enumerate(value)]
    if isinstance(value, dict):
        return {key: interpolate(item, lookup, where=at(where, key)) for key, item in value.items()}
    return value


def references(value: Json | Mapping[str, Json], *, where: str) -> Iterator[str]:
    """Yield the breadcrumbs of texts with a `%{name}` that needs a lookup (`literal` does not).

    Args:
        value: Any JSON value; keys of mappings stay.
        where: The breadcrumb of `value`.
    """
    if isinstance(value, str):
        if any(not _LITERAL.match(match[1].strip()) for match in _REFERENCE.finditer(value)):
            yield where
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from references(item, where=at(where, index))
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from references(item, where=at(where, key))


def _interpolate_text(text: str, lookup: Callable[[str, str], str], where: str) -> str:
    def replace(match: "re.Match[str]") -> str:
        name = match.group(1).strip()
        literal = _LITERAL.match(name)
        if literal:
            return literal.group(2)
        if not _VARIABLE.match(name):
            raise InvalidInputError(
                f"'%{{{name[:60]}}}' is not a parameter's name",
                where=where,
                hint="a percent sign before a brace is written %{literal('%')}",
            )
        return lookup(name, where)

    replaced = _REFERENCE.sub(replace, text)
    if "%{" in _REFERENCE.sub("", text):
        raise InvalidInputError(
            "'%{' is not closed",
            where=where,
            hint="a percent sign before a brace is written %{literal('%')}",
        )
    return replaced


class ParameterResolver:
    """Resolves `%{name}` with the parameters of one node document.

    Parameters may refer to each other; a parameter's own references are resolved first, and once.
    """

    def __init__(self, parameters: Mapping[str, Json]) -> None:
        self._parameters = parameters
        self._resolved: dict[str, Json] = {}
        self._open: list[str] = []
        self._size = 0

    def parameter(self, name: str) -> Json:
        """Return the parameter `name` with its own references replaced.

        Raises:
            InvalidInputError: References are circular, too deep, or grow too large.
        """
        if name in self._resolved:
            return self._resolved[name]
        if name in self._open or len(self._open) >= MAX_CHAIN:
            chain = " -> ".join([*self._open[-4:], name])
            what = "refer to each other" if name in self._open else f"refer {MAX_CHAIN} deep"
            raise InvalidInputError(f"parameters {what}: {chain}", where=at("parameters", name))
        self._open.append(name)
        try:
            value = interpolate(self._parameters[name], self, where=at("parameters", name))
        finally:
            self._open.pop()
        self._resolved[name] = value
        return value

    def __call__(self, name: str, where: str) -> str:
        """Return the text of `name`.

        Raises:
            InvalidInputError: The parameter is unknown, not a scalar, null, or refers to itself.
        """
        head, *rest = name.split(".")
        if head not in self._parameters:
            raise InvalidInputError(
                f"'%{{{name}}}' is unknown: the document has no parameter {head!r}",
                where=where,
                hint="facts are not available here; write a literal %{ as %{literal('%')}{",
            )
        value = self.parameter(head)
        for key in rest:
            if not isinstance(value, dict) or key not in value:
                raise InvalidInputError(f"'%{{{name}}}' is unknown: no key {key!r}", where=where)
            value = value[key]
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, str | int | float):
            text = str(value)
            self._size += len(text)
            if self._size > MAX_EXPANSION:
                raise InvalidInputError(
                    f"references expand to more than {MAX_EXPANSION} characters", where=where
                )
            return text
        raise InvalidInputError(
            f"'%{{{name}}}' is a {type_names[type(value)]}, not text", where=where
        )
