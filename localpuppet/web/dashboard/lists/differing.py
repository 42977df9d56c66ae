"""The differences between two releases as rows."""

from collections.abc import Mapping
from dataclasses import dataclass

from localpuppet.node.releases.difference import NameDifference

REMOVED, ADDED, CHANGED = "removed", "added", "changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRow:
    """A difference.

    Attributes:
        of: Its kind: `dependencies`, `files`.
        name: Its name.
        change: `removed`, `added`, `changed`.
        how: For a change: old and new.
    """

    of: str
    name: str
    change: str
    how: str = ""


def changes(differences: Mapping[str, NameDifference]) -> list[ChangeRow]:
    """Return the rows, sorted by kind and name.

    Args:
        differences: Kind → difference.
    """
    found = []
    for of, difference in differences.items():
        rows = [ChangeRow(of=of, name=name, change=REMOVED) for name in difference.removed]
        rows += [ChangeRow(of=of, name=name, change=ADDED) for name in difference.added]
        rows += [
            ChangeRow(of=of, name=name, change=CHANGED, how=how)
            for name, how in difference.changed.items()
        ]
        found += sorted(rows, key=lambda row: row.name)
    return found
