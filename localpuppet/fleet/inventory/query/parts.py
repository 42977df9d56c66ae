"""What in an answer is whose, so that two answers can be told apart node by node.

Owns: labels of what was told of a node, and short digests of it. Refuses to know: questions, and
whether two answers differ at all: the digest of the whole answer says that.

- A label is what people know the thing by: a fact's name, a column, `Type[title]`.
- Digests are short. They explain which node made an answer another one; where two values happen to
  have the same, the change is still noticed, and only its explanation is poorer.
- Of an answer about many nodes only one digest a node is kept.

Example: `parts_of(["a"], [("a", {"ipaddress": "10.0.0.1"})])` is `{"a": {"ipaddress": "5f3c…"}}`.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.query.evaluating import canonical

# What was told of each node: label → digest.
Parts = Mapping[str, Mapping[str, str]]
# Nodes in an answer of which labels are kept; and how many of one node.
DETAILED = 1000
MAX_LABELS = 100
_WHOLE = ""
_SIZE = 4  # bytes


def parts_of(
    names: Sequence[str], told: Iterable[tuple[str, Mapping[str, Json]]]
) -> dict[str, dict[str, str]]:
    """Return what was told of each node; nothing is told of some.

    Args:
        names: The nodes in the answer.
        told: A node and, by label, what is told of it; a node may come several times.
    """
    found: dict[str, dict[str, list[Json]]] = {name: {} for name in names}
    for name, about in told:
        for label, value in about.items():
            found.setdefault(name, {}).setdefault(label, []).append(value)
    detailed = len(found) <= DETAILED
    return {
        name: _by_label(about) if detailed and len(about) <= MAX_LABELS else _together(about)
        for name, about in found.items()
    }


def labelled(row: Mapping[str, Json]) -> dict[str, Json]:
    """Return what a row of a result tells, by label.

    A row about one fact or one resource is known by its name; another tells what its columns do.
    """
    if isinstance(row.get("name"), str):
        return {str(row["name"]): dict(row)}
    if isinstance(row.get("type"), str) and isinstance(row.get("title"), str):
        return {f"{row['type']}[{row['title']}]": dict(row)}
    told = dict(row)
    facts = told.pop("facts", None)
    return {**told, **(facts if isinstance(facts, dict) else {})}


def _by_label(about: Mapping[str, list[Json]]) -> dict[str, str]:
    return {label: _digest(values) for label, values in about.items()}


def _together(about: Mapping[str, list[Json]]) -> dict[str, str]:
    return {_WHOLE: _digest(dict(about.items()))}


def _digest(value: Json) -> str:
    return hashlib.blake2b(canonical(value), digest_size=_SIZE).hexdigest()
