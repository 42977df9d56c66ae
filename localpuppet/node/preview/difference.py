"""The difference between two catalogs of one node, and patterns for resources.

    File[*]::mtime                the parameter `mtime` of each file
    Service                       each service
    removed:Service[nginx*]       a removed service (`--fail-on` only)

`*` is any text, also none, and `?` is one character. A title may have brackets.

- Compared are classes, resources with their parameters, and relationships. Files, lines and the
  order of resources are no difference, nor are tags, except those that other nodes collect by.
- A relationship counts once, however the code writes it: `before`, `require` and `->` are one
  relationship, and so are `notify`, `subscribe` and `~>`. Relationships of a resource that only one
  catalog has are part of that resource.
- A parameter without a value is `None`: Puppet does not distinguish it from one that is not set.
- `{"__ptype": "Sensitive"}` is a secret. If two secrets have different marks
  (`{"__ptype": "Sensitive", "mark": "…"}`), the parameter changes; renderers show no mark.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import translate
from functools import lru_cache
from typing import Any, Literal

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.values import Json, field_values
from localpuppet.base.value import Value
from localpuppet.node.preview.preview_limits import MAX_PATTERN
from localpuppet.node.puppet.catalog import (
    MARK_KEY,
    TYPE_KEY,
    CanonicalCatalog,
    CatalogEdge,
    CatalogResource,
)
from localpuppet.node.releases.comparison import unified

_ACTIONS = ("added", "removed", "changed")
_PATTERN = re.compile(
    r"(?P<type>[A-Z*?][\w*?]*(?:::[A-Z*?][\w*?]*)*)"
    r"(?:\[(?P<title>.*)\])?(?:::(?P<parameter>[a-z_][\w*?]*))?",
    re.DOTALL,
)


class ResourcePattern(Value):
    """A pattern for resources, or for parameters of them."""

    type: str
    title: str = "*"
    parameter: str | None = None

    @classmethod
    def parse(cls, text: str, *, where: str = "--ignore") -> "ResourcePattern":
        """Return the pattern `TYPE[TITLE]::PARAMETER`; title and parameter are optional."""
        match = _PATTERN.fullmatch(text) if len(text) <= MAX_PATTERN else None
        if match is None:
            raise InvalidInputError(
                f"is not a pattern for resources: {text[:80]!r}",
                where=where,
                hint="TYPE, TYPE[TITLE] or TYPE[TITLE]::PARAMETER, for example 'File[*]::mtime'",
            )
        return cls(
            type=match["type"],
            title="*" if match["title"] is None else match["title"],
            parameter=match["parameter"],
        )

    def fits(self, type_name: str, title: str) -> bool:
        """Return whether the pattern fits the resource, whatever its parameters are."""
        return _matches(self.type, type_name) and _matches(self.title, title)

    def fits_parameter(self, name: str) -> bool:
        return self.parameter is None or _matches(self.parameter, name)

    def hides(self, type_name: str, title: str) -> bool:
        """Return whether the pattern fits the whole resource."""
        return self.parameter is None and self.fits(type_name, title)


class ForbiddenChange(Value):
    """A change that `--fail-on` forbids; without an action, each of the three is forbidden."""

    action: str
    pattern: ResourcePattern
    text: str

    @classmethod
    def parse(cls, text: str, *, where: str = "--fail-on") -> "ForbiddenChange":
        """Return the forbidden change `[ACTION:]TYPE[TITLE]::PARAMETER`."""
        action, colon, rest = text.partition(":")
        if not colon or action not in _ACTIONS:
            raise InvalidInputError(
                f"does not begin with an action: {text[:80]!r}",
                where=where,
                hint="added:, removed: or changed:, for example 'removed:Service[nginx]'",
            )
        return cls(action=action, pattern=ResourcePattern.parse(rest, where=where), text=text)


def _matches(pattern: str, text: str) -> bool:
    """Return whether a text fits; a title of a pull request cannot make that take long."""
    return _compiled(pattern).match(text) is not None


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> "re.Pattern[str]":
    return re.compile(translate(pattern.replace("[", "[[]")))


ADDED: Literal["added"] = "added"
REMOVED: Literal["removed"] = "removed"
CHANGED: Literal["changed"] = "changed"
Action = Literal["added", "removed", "changed"]

# The relationship of a canonical edge → its meaning.
_MEANING = {
    "contains": "contains",
    "before": "before",
    "required-by": "before",
    "notifies": "notifies",
    "subscription-of": "notifies",
}
_RELATIONS = frozenset(("before", "require", "notify", "subscribe"))
_EXPORTED = "(exported)"


class ParameterChange(Value):
    """A parameter whose value differs."""

    name: str
    before: Json
    after: Json

    @property
    def text(self) -> str | None:
        """Return the unified lines of two texts of several lines, without a head; else `None`."""
        before = "" if self.before is None else self.before
        after = "" if self.after is None else self.after
        if not isinstance(before, str) or not isinstance(after, str):
            return None
        if "\n" not in before.rstrip("\n") and "\n" not in after.rstrip("\n"):
            return None
        return _unified(before, after)

    def to_dict(self) -> dict[str, Json]:
        return {
            "name": self.name,
            "before": without_marks(self.before),
            "after": without_marks(self.after),
            "text": self.text,
        }


class ResourceChange(Value):
    """A resource that differs, with its parameters by name; all of an added or removed one."""

    action: Action
    type: str
    title: str
    parameters: tuple[ParameterChange, ...] = ()

    @property
    def reference(self) -> str:
        """Return `File[/etc/motd]`."""
        return f"{self.type}[{self.title}]"


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class RelationshipChange:
    """A relationship (`contains`, `before` or `notifies`) of resources that exist on both sides."""

    action: Action
    source: str
    relationship: str
    target: str


class CatalogDifference(Value):
    """The difference between two catalogs, sorted; `resources` has no classes."""

    classes_added: tuple[str, ...] = ()
    classes_removed: tuple[str, ...] = ()
    resources: tuple[ResourceChange, ...] = ()
    relationships: tuple[RelationshipChange, ...] = ()

    def __bool__(self) -> bool:
        return bool(
            self.classes_added or self.classes_removed or self.resources or self.relationships
        )

    def with_resources(self, changes: Iterable[ResourceChange]) -> "CatalogDifference":
        """Return the difference with further changed resources, such as contents of `source`.

        A resource that differs anyway gets the further parameters.
        """
        merged = {(change.type, change.title): change for change in self.resources}
        for change in changes:
            if (own := merged.get((change.type, change.title))) is not None:
                parameters = (*own.parameters, *change.parameters)
                change = replace(own, parameters=tuple(sorted(parameters, key=lambda it: it.name)))
            merged[change.type, change.title] = change
        return replace(self, resources=tuple(merged[key] for key in sorted(merged)))

    def to_dict(self) -> dict[str, Any]:
        return {
            **field_values(self),
            "resources": [
                {
                    **field_values(change),
                    "parameters": [item.to_dict() for item in change.parameters],
                }
                for change in self.resources
            ],
            "relationships": [*map(field_values, self.relationships)],
        }


def difference(
    before: CanonicalCatalog, after: CanonicalCatalog, *, ignore: Iterable[ResourcePattern] = ()
) -> CatalogDifference:
    """Compare two catalogs without the resources and parameters to `ignore`."""
    patterns = tuple(ignore)
    first, second = ({item.reference: item for item in side.resources} for side in (before, after))
    shared = first.keys() & second.keys()
    changes = [
        change
        for reference in sorted(first.keys() | second.keys())
        if (change := _compared(first.get(reference), second.get(reference), patterns)) is not None
    ]
    hidden = {reference for reference in shared if any(item.hides(*reference) for item in patterns)}
    edges, others = (_edges(side.edges, shared - hidden) for side in (before, after))
    own, new = (
        {
            name
            for name in side.classes
            if not any(item.hides("Class", class_title(name)) for item in patterns)
        }
        for side in (before, after)
    )
    return CatalogDifference(
        classes_added=tuple(sorted(new - own)),
        classes_removed=tuple(sorted(own - new)),
        resources=tuple(changes),
        relationships=tuple(
            sorted(
                RelationshipChange(action=action, source=one, relationship=kind, target=other)
                for action, only in ((ADDED, others - edges), (REMOVED, edges - others))
                for one, kind, other in only
            )
        ),
    )


def restarts(changes: CatalogDifference, after: CanonicalCatalog) -> tuple[str, ...]:
    """Return the services that a change makes Puppet restart, sorted.

    A changed resource notifies for itself and for what contains it. Notified are a resource and all
    that it contains. Puppet starts an added service, and restarts none.
    """
    targets: dict[str, set[str]] = {}
    inside: dict[str, set[str]] = {}
    around: dict[str, set[str]] = {}
    for source, kind, target in _edges(after.edges, {item.reference for item in after.resources}):
        if kind == "contains":
            inside.setdefault(source, set()).add(target)
            around.setdefault(target, set()).add(source)
        elif kind == "notifies":
            targets.setdefault(source, set()).add(target)
    added = {change.reference for change in changes.resources if change.action == ADDED}
    notified: set[str] = set()
    telling: set[str] = set()
    waiting = {change.reference for change in changes.resources if change.action != REMOVED}
    while waiting:  # each resource tells once, and is notified once
        fresh = _closure(waiting, around, telling)
        telling |= fresh
        told = {other for one in fresh for other in targets.get(one, ())}
        waiting = _closure(told, inside, notified)
        notified |= waiting
    services = {name for name in notified if name.startswith("Service[")}
    return tuple(sorted(services - added))


def _closure(starts: set[str], links: Mapping[str, set[str]], known: set[str]) -> set[str]:
    """Return names and all that their links lead to, except known ones and what is behind them."""
    reached = starts - known
    waiting = [*reached]
    while waiting:
        fresh = links.get(waiting.pop(), set()) - known - reached
        reached |= fresh
        waiting += fresh
    return reached


def without_marks(value: Json) -> Json:
    """Return a value for people: placeholders of secrets without their marks."""
    if isinstance(value, list):
        return [without_marks(item) for item in value]
    if not isinstance(value, dict):
        return value
    hides = TYPE_KEY in value
    return {key: without_marks(item) for key, item in value.items() if not hides or key != MARK_KEY}


def class_title(name: str) -> str:
    """Return the title of a class's resource: `Ntp::Config` for `ntp::config`."""
    return "::".join(f"{part[:1].upper()}{part[1:]}" for part in name.split("::"))


def same(first: Json, second: Json) -> bool:
    """Return whether two values are equal for Puppet: `1`, `1.0`, `true` and `'1'` are not."""
    if type(first) is not type(second):
        return False
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(
            same(value, second[key]) for key, value in first.items()
        )
    if isinstance(first, list) and isinstance(second, list):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second


def _compared(
    first: CatalogResource | None,
    second: CatalogResource | None,
    patterns: tuple[ResourcePattern, ...],
) -> ResourceChange | None:
    either = first or second
    if either is None or first is second:
        return None
    kind, title = either.reference
    patterns = tuple(item for item in patterns if item.fits(kind, title))
    if any(item.parameter is None for item in patterns):
        return None
    action = CHANGED if first and second else ADDED if second else REMOVED
    if kind == "Class" and action != CHANGED:
        return None  # in the lists of classes
    edges_tell = action == CHANGED and not (
        (first and first.exported) or (second and second.exported)
    )
    own, new = (dict(_parameters(side, edges_tell=edges_tell)) for side in (first, second))
    parameters = tuple(
        ParameterChange(name=name, before=own.get(name), after=new.get(name))
        for name in sorted(own.keys() | new.keys())
        if not same(own.get(name), new.get(name))
        and not any(item.fits_parameter(name) for item in patterns)
    )
    if not parameters and action == CHANGED:
        return None
    return ResourceChange(action=action, type=kind, title=title, parameters=parameters)


def _parameters(
    resource: CatalogResource | None, *, edges_tell: bool
) -> Iterator[tuple[str, Json]]:
    """Yield the parameters that are compared, without relationships if `edges_tell` those."""
    if resource is None:
        return
    for name, value in resource.parameters.items():
        if name == "tag" and not resource.exported:
            continue
        if name not in _RELATIONS:
            yield name, value
        elif not edges_tell:
            yield name, [*sorted(_flat(value))]
    if resource.exported:
        yield _EXPORTED, True


@lru_cache(maxsize=1024)
def _unified(before: str, after: str) -> str:
    data = [text.encode("utf-8", "surrogatepass") for text in (before, after)]
    lines = unified(data[0], data[1], labels=("before", "after"))
    return lines.split("\n", 2)[2] if lines.startswith("--- ") else lines


def _flat(value: Json) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _flat(item)
    else:
        yield str(value)


def _edges(edges: Iterable[CatalogEdge], among: set[tuple[str, str]]) -> set[tuple[str, str, str]]:
    return {
        (
            f"{edge.source_type}[{edge.source_title}]",
            _MEANING[edge.relationship],
            f"{edge.target_type}[{edge.target_title}]",
        )
        for edge in edges
        if (edge.source_type, edge.source_title) in among
        and (edge.target_type, edge.target_title) in among
    }
