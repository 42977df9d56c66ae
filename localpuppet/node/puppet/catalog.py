"""The canonical form of a catalog: what PuppetDB stores of it, in one order and without secrets.

Source: PuppetDB's catalog wire format, version 9
(https://www.puppet.com/docs/puppetdb/7/api/wire_format/catalog_format_v9.html), and the terminus
with which Puppet Server sends it (`puppet/lib/puppet/indirector/catalog/puppetdb.rb`).

- Secrets first: `{"__ptype": "Sensitive"}` replaces each Sensitive value and each parameter that
  Puppet marks as sensitive, at any depth. A Deferred call becomes `{"__ptype": "Deferred"}`: its
  arguments may be a secret. PuppetDB drops the former and stores the latter with its arguments.
  In a preview, `mark` is a keyed digest: two catalogs show whether a secret differs.
- Resources are sorted by type and title. Their tags and the metaparameters without an order
  (`before`, `require`, …) are sorted, too. A metaparameter exists only if the catalog sets it.
- `alias` has all other names of a resource, including the value of its namevar.
- Edges are unique and sorted. A relationship of a metaparameter is an edge, too, from the resource
  that comes first to the other one, by their titles. Autorequired relationships are not included.
- A file is relative to its release, without the directory where this node stores it.
- Version, time and UUIDs differ between two runs with the same catalog. They are not part of the
  form, so that equal catalogs of a node have equal bytes and one digest.
"""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from localpuppet.base.errors import InvalidInputError, check_limit
from localpuppet.base.formats.converter import AllowedRange, JsonRecord, from_record
from localpuppet.base.formats.strict_json import canonical, parse_object
from localpuppet.base.formats.values import Json
from localpuppet.base.value import Value
from localpuppet.node.puppet.command_line import in_release

SCHEMA = 1
MAX_BYTES = 32 * 1024 * 1024  # as canonical JSON
MAX_VALUES = 1_000_000

TYPE_KEY, MARK_KEY = "__ptype", "mark"
SENSITIVE, DEFERRED = "Sensitive", "Deferred"
_UNORDERED = ("alias", "audit", "before", "check", "notify", "require", "subscribe", "tag")
# A metaparameter → whether its resource is the source of the edge, and the name of the edge.
_RELATIONSHIPS = {
    "before": (True, "before"),
    "require": (False, "required-by"),
    "notify": (True, "notifies"),
    "subscribe": (False, "subscription-of"),
}
RELATIONSHIPS = ("contains", *(name for _, name in _RELATIONSHIPS.values()))
_REFERENCE = re.compile(r"([^\[\]]+)\[(.+)\]", re.DOTALL)

_MARK = re.compile("[0-9a-f]{32}")

Reference = tuple[str, str]


class CatalogResource(Value):
    """A resource of a catalog: its file is relative to the release, its tags are sorted."""

    type: str
    title: str
    exported: bool
    file: str | None
    line: Annotated[int, AllowedRange(minimum=0)] | None
    tags: tuple[str, ...]
    parameters: Mapping[str, Json]

    @property
    def reference(self) -> Reference:
        """Return its type and title."""
        return self.type, self.title


def _relationship(text: str) -> str:
    if text not in RELATIONSHIPS:
        raise InvalidInputError("is not the name of a relationship")
    return text


@dataclass(frozen=True, slots=True, order=True)
class CatalogEdge:
    """A relationship: Puppet manages the source before the target."""

    source_type: str
    source_title: str
    target_type: str
    target_title: str
    relationship: Annotated[str, _relationship]


class CanonicalCatalog(JsonRecord):
    """A catalog in its canonical form: everything is sorted."""

    SCHEMA: ClassVar = SCHEMA
    certname: str
    environment: str
    classes: tuple[str, ...]
    resources: tuple[CatalogResource, ...]
    edges: tuple[CatalogEdge, ...]

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> "CanonicalCatalog":
        """Return the canonical form of a catalog as Puppet writes it.

        Args:
            raw: Puppet's JSON (https://github.com/puppetlabs/puppet/blob/main/api/schemas/catalog.json).
                A resource may have `aliases` and `virtual` as well: see
                `PuppetX::Localpuppet::Catalogs`.

        Raises:
            InvalidInputError: It is not a catalog, or a relationship names no resource.
        """
        try:
            listed = raw["resources"]
            _texts(raw["name"], raw["environment"], *raw["classes"])
            resources = tuple(sorted(map(_resource, listed), key=lambda item: item.reference))
            virtual = {(item["type"], item["title"]) for item in listed if item.get("virtual")}
            contained = {
                CatalogEdge(*_reference(edge["source"]), *_reference(edge["target"]), "contains")
                for edge in raw["edges"]
            }
            return cls(
                certname=raw["name"],
                environment=raw["environment"],
                classes=tuple(sorted(set(raw["classes"]))),
                resources=resources,
                edges=tuple(sorted({*contained, *_synthesised(resources, virtual)})),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidInputError(f"is not a catalog of Puppet: {error!r}") from error

    @classmethod
    def parse(cls, data: bytes, *, where: str) -> "CanonicalCatalog":
        """Return the catalog in the canonical bytes of another node."""
        raw = parse_object(data, where=where, limit=MAX_BYTES, values=MAX_VALUES)
        return from_record(cls, raw, where=where)

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the canonical bytes, hexadecimal."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def to_bytes(self) -> bytes:
        """Return the canonical bytes: ASCII JSON with sorted keys, without spaces."""
        data = canonical(self.to_dict())
        check_limit(len(data), MAX_BYTES)
        return data


def without_secrets(value: Json) -> Json:
    """Return a value with placeholders for Sensitive values and Deferred calls, at any depth."""
    if isinstance(value, list):
        return [without_secrets(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get(TYPE_KEY) in (SENSITIVE, DEFERRED):
        mark = value.get(MARK_KEY)
        is_mark = isinstance(mark, str) and _MARK.fullmatch(mark) is not None
        return {TYPE_KEY: value[TYPE_KEY], **({MARK_KEY: mark} if is_mark else {})}
    return {key: without_secrets(item) for key, item in value.items()}


def _texts(*values: object) -> None:
    if not all(isinstance(value, str) for value in values):
        raise TypeError("a name is not a text")


def _resource(raw: Mapping[str, Any]) -> CatalogResource:
    tags, aliases, line = raw.get("tags", ()), raw.get("aliases") or (), raw.get("line")
    _texts(raw["type"], raw["title"], *tags, *aliases)
    if not isinstance(line, int | None):
        raise TypeError("a line is not a number")
    secret = raw.get("sensitive_parameters", ())
    parameters: dict[str, Json] = {
        name: _secret(value) if name in secret else without_secrets(value)
        for name, value in raw.get("parameters", {}).items()
    }
    if aliases and "alias" not in secret:
        parameters["alias"] = [*aliases]
    for name in _UNORDERED:
        if isinstance(several := parameters.get(name), list):
            parameters[name] = sorted(several, key=str)
    file = raw.get("file")
    return CatalogResource(
        type=raw["type"],
        title=raw["title"],
        exported=bool(raw.get("exported")),
        file=None if file is None else in_release(file),
        line=line,
        tags=tuple(sorted(tags)),
        parameters=parameters,
    )


def _secret(value: Json) -> Json:
    """Return the placeholder of a parameter that Puppet marks as sensitive."""
    hides = isinstance(value, dict) and value.get(TYPE_KEY) == SENSITIVE
    return without_secrets(value) if hides else {TYPE_KEY: SENSITIVE}


def _synthesised(
    resources: Sequence[CatalogResource], virtual: set[Reference]
) -> Iterator[CatalogEdge]:
    """Yield the edges of metaparameters, except those of resources that Puppet does not apply."""
    titles = {item.reference: item.title for item in resources}
    for resource in resources:
        for name in _flat(resource.parameters.get("alias")):
            titles.setdefault((resource.type, name), resource.title)
    for resource in resources:
        if resource.reference in virtual:
            continue
        for parameter, (is_source, relationship) in _RELATIONSHIPS.items():
            for text in _flat(resource.parameters.get(parameter)):
                kind, title = _reference(text)
                if kind == "File":  # Puppet ignores slashes at the end of a path
                    title = title.rstrip("/") or title
                if (kind, title) not in titles:
                    raise InvalidInputError(
                        f"the catalog lacks {parameter} => {text}",
                        where=f"{resource.type}[{resource.title}]",
                    )
                other = kind, titles[kind, title]
                first, second = (
                    (resource.reference, other) if is_source else (other, resource.reference)
                )
                yield CatalogEdge(*first, *second, relationship)


def _reference(text: str) -> Reference:
    match = _REFERENCE.fullmatch(text)
    if match is None:
        raise InvalidInputError("a relationship is not a reference to a resource")
    return match[1], match[2]


def _flat(value: Json) -> Iterator[str]:
    """Yield the texts in a value of a metaparameter: a text, or lists of them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _flat(item)
