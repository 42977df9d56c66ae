"""The difference between two catalogs in the short forms of other commands."""

import json
from collections.abc import Mapping

from localpuppet.base.formats.values import Json
from localpuppet.node.preview.difference import (
    ADDED,
    CHANGED,
    REMOVED,
    CatalogDifference,
    ParameterChange,
    class_title,
)
from localpuppet.node.puppet.catalog import TYPE_KEY
from localpuppet.node.releases.difference import CatalogChanges, NameDifference

_SIGNS = {ADDED: "+", REMOVED: "-"}


def named_difference(difference: CatalogDifference) -> NameDifference:
    """Return references of resources, with a line for each that changes: `mode: 0644 → 0600`."""
    parts = {
        change.reference: [*map(_shown, change.parameters)]
        for change in difference.resources
        if change.action == CHANGED
    }
    for relation in difference.relationships:
        part = f"{_SIGNS[relation.action]}{relation.relationship} {relation.target}"
        parts.setdefault(relation.source, []).append(part)
    return NameDifference(
        added=_references(difference, added=True),
        removed=_references(difference, added=False),
        changed={reference: "; ".join(parts[reference]) for reference in sorted(parts)},
    )


def brief_changes(difference: CatalogDifference) -> CatalogChanges:
    """Return references of resources and names of parameters and relationships, without values."""
    names: dict[str, set[str]] = {
        change.reference: {parameter.name for parameter in change.parameters}
        for change in difference.resources
        if change.action == CHANGED
    }
    for relation in difference.relationships:
        names.setdefault(relation.source, set()).add(relation.relationship)
    changed: Mapping[str, tuple[str, ...]] = {
        reference: tuple(sorted(names[reference])) for reference in sorted(names)
    }
    return CatalogChanges(
        added=_references(difference, added=True),
        removed=_references(difference, added=False),
        changed=changed,
    )


def _references(difference: CatalogDifference, *, added: bool) -> tuple[str, ...]:
    classes = difference.classes_added if added else difference.classes_removed
    action = ADDED if added else REMOVED
    return tuple(
        sorted(
            [
                *(f"Class[{class_title(name)}]" for name in classes),
                *(change.reference for change in difference.resources if change.action == action),
            ]
        )
    )


def _shown(change: ParameterChange) -> str:
    if change.before is None:
        return f"+{change.name}={_text(change.after)}"
    if change.after is None:
        return f"-{change.name}={_text(change.before)}"
    return f"{change.name}: {_text(change.before)} → {_text(change.after)}"


def _text(value: Json) -> str:
    if isinstance(value, dict) and isinstance(kind := value.get(TYPE_KEY), str):
        return f"({kind.lower()})"
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
