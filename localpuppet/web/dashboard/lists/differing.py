"""What differs between two releases, row by row.

Owns: the rows and their order. Refuses to know: how releases are read, HTML.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from localpuppet.node.releases.difference import Difference

REMOVED, ADDED, CHANGED = "removed", "added", "changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeRow:
    """One thing that is not the same in both.

    Attributes:
        of: What it is one of: `dependencies`, `files`.
        name: Its name.
        change: `removed`, `added`, `changed`.
        how: Of what is changed: how it was, and how it is.
    """

    of: str
    name: str
    change: str
    how: str = ""


def changes(differences: Mapping[str, Difference]) -> list[ChangeRow]:
    """Return the rows: by what they are of, and then by name.

    Args:
        differences: What is compared → how it differs.
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
