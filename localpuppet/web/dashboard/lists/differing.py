"""The differences between two releases as rows."""

from collections.abc import Mapping
from dataclasses import dataclass

from localpuppet.base.formats.text import shortened
from localpuppet.node.releases.difference import NameDifference

REMOVED, ADDED, CHANGED = "removed", "added", "changed"
FILES = "files"
# Lines of a file's diff that are shown, and characters of a line.
MOST_LINES = 1000
MAX_LINE = 500
# Diffs that are open at first.
MOST_OPEN = 10
_STYLES = {"+": ADDED, "-": REMOVED, "@": "place"}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class FileDiff:
    """The unified diff of a file, cut to the limits.

    Attributes:
        name: The file.
        lines: Its lines, each with a class of the style sheet; none if `note` has the reason.
        left_out: The number of omitted lines.
        note: Why the diff is not shown, or empty.
    """

    name: str
    lines: tuple[tuple[str, str], ...] = ()
    left_out: int = 0
    note: str = ""

    @classmethod
    def of(cls, name: str, text: str) -> "FileDiff":
        """Return a file's diff.

        Args:
            name: The file.
            text: The result of `releases.difference.unified`.
        """
        if not text.startswith("--- "):
            return cls(name=name, note=text)
        lines = text.split("\n")[2:]  # without the names
        shown = tuple(
            (_STYLES.get(line[:1], ""), shortened(line.expandtabs(4), MAX_LINE))
            for line in lines[:MOST_LINES]
        )
        return cls(name=name, lines=shown, left_out=len(lines) - len(shown))


def changes(differences: Mapping[str, NameDifference]) -> list[ChangeRow]:
    """Return the rows, sorted by kind and name.

    Args:
        differences: Kind → difference.
    """
    all_rows = []
    for of, difference in differences.items():
        rows = [ChangeRow(of=of, name=name, change=REMOVED) for name in difference.removed]
        rows += [ChangeRow(of=of, name=name, change=ADDED) for name in difference.added]
        rows += [
            ChangeRow(of=of, name=name, change=CHANGED, how=how)
            for name, how in difference.changed.items()
        ]
        all_rows += sorted(rows, key=lambda row: row.name)
    return all_rows
