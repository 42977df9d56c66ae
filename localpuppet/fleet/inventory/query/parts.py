"""Digest an answer per node, so that two answers can be compared node by node.

- A label names a value: a fact's name, a column, `Type[title]`.
- Digests are short. They only explain which node changed an answer: a collision hides the
  explanation, not the change, which the digest of the whole answer shows.
- For answers about many nodes, each node has only one digest.

Example: `parts_of(["a"], [("a", {"ipaddress": "10.0.0.1"})])` is `{"a": {"ipaddress": "5f3c…"}}`.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from localpuppet.base.formats.strict_json import canonical
from localpuppet.base.formats.values import Json

# Each node's values: label → digest.
Parts = Mapping[str, Mapping[str, str]]
# The limits of nodes with labels in an answer, and of labels per node.
DETAILED = 1000
MAX_LABELS = 100
_WHOLE = ""
_SIZE = 4  # bytes


def parts_of(
    names: Sequence[str], rows: Iterable[tuple[str, Mapping[str, Json]]]
) -> dict[str, dict[str, str]]:
    """Return the digests by node; nodes without values have none.

    Args:
        rows: Nodes with their values by label; a node may occur several times.
    """
    parts: dict[str, dict[str, list[Json]]] = {name: {} for name in names}
    for name, about in rows:
        for label, value in about.items():
            parts.setdefault(name, {}).setdefault(label, []).append(value)
    detailed = len(parts) <= DETAILED
    return {
        name: _by_label(about) if detailed and len(about) <= MAX_LABELS else _together(about)
        for name, about in parts.items()
    }


def labelled(row: Mapping[str, Json]) -> dict[str, Json]:
    """Return a row's values by label.

    The label of a row about one fact or one resource is its name; other rows have a label per
    column.
    """
    if isinstance(row.get("name"), str):
        return {str(row["name"]): dict(row)}
    if isinstance(row.get("type"), str) and isinstance(row.get("title"), str):
        return {f"{row['type']}[{row['title']}]": dict(row)}
    members = dict(row)
    facts = members.pop("facts", None)
    return {**members, **(facts if isinstance(facts, dict) else {})}


def _by_label(about: Mapping[str, list[Json]]) -> dict[str, str]:
    return {label: _digest(values) for label, values in about.items()}


def _together(about: Mapping[str, list[Json]]) -> dict[str, str]:
    return {_WHOLE: _digest(dict(about.items()))}


def _digest(value: Json) -> str:
    return hashlib.blake2b(canonical(value), digest_size=_SIZE).hexdigest()
