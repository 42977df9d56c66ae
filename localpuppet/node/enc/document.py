"""The input, the ENC data, the layers, `%{name}` in values, and the node document.

JSON Schemas check shapes (mapping, list, string) before values get here. This module checks
grammars and reserved names, and decides the order of layers.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import cast

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import (
    ClassName,
    EnvironmentName,
    ReleasePath,
    check_class_parameter,
    check_known,
    check_parameter,
)
from localpuppet.base.formats.values import Json, at, type_names
from localpuppet.base.value import Value

MAX_CHAIN = 50
MAX_EXPANSION = 1024 * 1024
_REFERENCE = r"%\{([^{}]*)\}"
_LITERAL = r"(?s:literal\((['\"])(.*)\1\)\Z)"
_VARIABLE = r"[a-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*\Z"


def interpolate(value: Json, lookup: Callable[[str, str], str], *, where: str) -> Json:
    """Return `value` with every `%{name}` in its strings replaced.

    `%{literal('%')}` is a percent sign, as in Hiera
    (https://www.puppet.com/docs/puppet/7/hiera_merging.html#interpolation_functions).
    """
    if isinstance(value, str):
        return _interpolate_text(value, lookup, where) if "%{" in value else value
    if isinstance(value, list):
        return [interpolate(item, lookup, where=at(where, i)) for i, item in enumerate(value)]
    if isinstance(value, dict):
        return {key: interpolate(item, lookup, where=at(where, key)) for key, item in value.items()}
    return value


def references(value: Json | Mapping[str, Json], *, where: str) -> Iterator[str]:
    """Yield the breadcrumbs of texts with a `%{name}` that needs a lookup (`literal` does not)."""
    if isinstance(value, str):
        if any(
            not re.match(_LITERAL, match[1].strip()) for match in re.finditer(_REFERENCE, value)
        ):
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
        if literal := re.match(_LITERAL, name):
            return literal.group(2)
        if not re.match(_VARIABLE, name):
            raise InvalidInputError(
                f"'%{{{name[:60]}}}' is not a parameter's name",
                where=where,
                hint="a percent sign before a brace is written %{literal('%')}",
            )
        return lookup(name, where)

    replaced = re.sub(_REFERENCE, replace, text)
    if "%{" in re.sub(_REFERENCE, "", text):
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
        """Return the parameter `name` with its own references replaced."""
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
        """Return the text of `name`."""
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


# JSON leaves these as they are; Ruby's YAML reader refuses them or takes them for line breaks.
_ESCAPE = "[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]"
DEFAULT_ENVIRONMENT = "production"
Classes = Mapping[str, Mapping[str, Json]]


class EncData(Value):
    """Classes with their parameters, top-scope parameters, an environment: one layer of them.

    A class parameter of `None` removes the value of a lower layer, so that Puppet's default
    applies.
    """

    classes: Classes
    parameters: Mapping[str, Json]
    environment: EnvironmentName | None = None

    @classmethod
    def from_dict(cls, raw: Mapping[str, Json], *, where: str = "") -> "EncData":
        """Return the ENC data in `raw`; other keys are ignored.

        Args:
            raw: `{"classes": {name: {…} | None} | [name, …], "parameters": {…}, "environment":
                name}`, each optional.
        """
        place = at(where, "classes")
        classes: dict[str, Mapping[str, Json]] = {}
        for name, body in _class_items(raw.get("classes"), place):
            ClassName.parse(name, where=place)
            for parameter in body:
                check_class_parameter(parameter, where=at(place, name))
            classes[name] = body
        parameters = cast("dict[str, Json]", raw.get("parameters") or {})
        for name in parameters:
            check_parameter(name, where=at(where, "parameters"))
        environment = cast("str | None", raw.get("environment"))
        return cls(
            classes=classes,
            parameters=parameters,
            environment=None
            if environment is None
            else EnvironmentName.parse(environment, where=at(where, "environment")),
        )

    def to_dict(self) -> dict[str, Json]:
        """Return the data in the form of `from_dict`."""
        return {
            "classes": {name: dict(body) for name, body in self.classes.items()},
            "parameters": dict(self.parameters),
            **({"environment": str(self.environment)} if self.environment else {}),
        }

    def over(self, lower: "EncData") -> "EncData":
        """Return `lower` with this layer on top: the upper value wins, parameter by parameter."""
        classes = dict(lower.classes)
        for name, body in self.classes.items():
            classes[name] = {**classes.get(name, {}), **body}
        return EncData(
            classes=classes,
            parameters={**lower.parameters, **self.parameters},
            environment=self.environment or lower.environment,
        )


def _class_items(raw: Json, where: str) -> Iterable[tuple[str, Mapping[str, Json]]]:
    if isinstance(raw, list):
        seen: set[Json] = set()
        for name in raw:
            if name in seen:
                raise InvalidInputError(f"the class {name!r} is listed twice", where=where)
            seen.add(name)
            yield cast("str", name), {}
    elif isinstance(raw, dict):
        for name, body in raw.items():
            yield name, cast("dict[str, Json]", body or {})


class Input(Value):
    """`input.yaml`: the release that a node runs, the layers that it names, its ENC data."""

    app: ReleasePath
    layers: tuple[str, ...]
    data: EncData

    @classmethod
    def from_dict(cls, raw: Mapping[str, Json]) -> "Input":
        """Return the input `{"app": "foo/tags/r1", "layers": [name, …], …ENC data}`."""
        return cls(
            app=ReleasePath.parse(cast("str", raw["app"]), where="app"),
            layers=tuple(cast("list[str]", raw.get("layers") or [])),
            data=EncData.from_dict(raw),
        )


class ReleaseEnc(Value):
    """`enc.yaml` of a release: ENC data for every node that runs it, and layers to choose from."""

    data: EncData
    layers: Mapping[str, EncData]

    @classmethod
    def from_dict(cls, raw: Mapping[str, Json]) -> "ReleaseEnc":
        """Return the ENC data `{…ENC data, "layers": {name: {…ENC data}}}`."""
        layers = cast("dict[str, dict[str, Json] | None]", raw.get("layers") or {})
        return cls(
            data=EncData.from_dict(raw),
            layers={
                name: EncData.from_dict(body or {}, where=f"layers.{name}")
                for name, body in layers.items()
            },
        )

    def select(self, names: Sequence[str]) -> list[EncData]:
        """Return the layers `names` of this release, lowest first."""
        for index, name in enumerate(names):
            where = f"layers[{index}]"
            check_known(name, self.layers, f"the release has no layer {name!r}", where=where)
            if name in names[:index]:
                raise InvalidInputError(f"asks for {name!r} twice", where=where)
        return [self.data, *(self.layers[name] for name in names)]


NO_RELEASE_ENC = ReleaseEnc(data=EncData(classes={}, parameters={}), layers={})


class NodeDocument(Value):
    """The complete output of an external node classifier."""

    classes: Classes
    parameters: Mapping[str, Json]
    environment: str

    @classmethod
    def from_dict(cls, raw: Mapping[str, Json]) -> "NodeDocument":
        """Return a document that was recorded."""
        data = EncData.from_dict(raw)
        return cls(
            classes=data.classes,
            parameters=data.parameters,
            environment=data.environment or DEFAULT_ENVIRONMENT,
        )

    def to_dict(self) -> dict[str, Json]:
        """Return the document in the form of Puppet's exec node terminus."""
        return {
            "classes": {name: dict(body) for name, body in self.classes.items()},
            "parameters": dict(self.parameters),
            "environment": self.environment,
        }

    def to_yaml(self) -> str:
        """Return the document as one line of JSON that is also YAML, with a newline."""
        return to_yaml(self.to_dict()) + "\n"


def classify(layers: Iterable[EncData]) -> NodeDocument:
    """Merge `layers`, lowest first, into the node document.

    Class parameters that are `None` are dropped, so that defaults apply; those of `parameters`
    stay. `%{name}` in values is replaced by the document's parameter of that name.
    """
    merged = EncData(classes={}, parameters={})
    for layer in layers:
        merged = layer.over(merged)
    lookup = ParameterResolver(merged.parameters)
    return NodeDocument(
        classes={
            name: {
                key: interpolate(value, lookup, where=f"classes.{name}.{key}")
                for key, value in body.items()
                if value is not None
            }
            for name, body in merged.classes.items()
        },
        parameters={name: lookup.parameter(name) for name in merged.parameters},
        environment=merged.environment or DEFAULT_ENVIRONMENT,
    )


def to_yaml(value: Json) -> str:
    """Return `value` as JSON that Ruby's YAML 1.1 parser reads as the same value.

    JSON is almost YAML. What differs is written so that both agree: U+0085, U+2028 and U+2029 are
    breaks in YAML 1.1 and are escaped, characters beyond the BMP are raw because YAML knows no
    surrogate pairs, and a float always has a point.
    """
    if isinstance(value, dict):
        items = (f"{_text(key)}: {to_yaml(item)}" for key, item in value.items())
        return "{" + ", ".join(items) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(to_yaml, value)) + "]"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        mantissa, exponent, power = repr(value).partition("e")
        return f"{mantissa if '.' in mantissa else mantissa + '.0'}{exponent}{power}"
    return json.dumps(value)


def _text(text: str) -> str:
    quoted = json.dumps(text, ensure_ascii=False)
    return re.sub(_ESCAPE, lambda match: f"\\u{ord(match.group()):04x}", quoted)
