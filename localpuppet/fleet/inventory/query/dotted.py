"""Parse a dotted field of PuppetDB: `facts.os.family`, `facts.ips[0]`, `trusted."a.b"`.

- A part may be quoted; an index is in brackets.
- In a condition, `match("[0-9]+")` selects every key and index whose whole text matches. PuppetDB
  searches its expression in the joined path instead, and advises against it.
"""

import re

from localpuppet.base.errors import InvalidInputError
from localpuppet.fleet.inventory.query.columns import NESTED, check_column
from localpuppet.fleet.inventory.query.tree import Entity, Field, Pattern, Step

MAX_STEPS = 32
# A quoted part ends at a quote before a dot or the end.
_PART = re.compile(r'\.(?:"((?:[^"\\]|\\.|"(?!\.|\Z))*)"|([^."\[\]]+))((?:\[[0-9]{1,6}\])*)')
_MATCH = re.compile(r'\.match\("(.*?)(?<!\\)"\)(?=\.|\Z)')


def parse_field(text: str, entity: Entity, *, several: bool = False) -> Field:
    """Parse a field of an entity.

    Args:
        text: The field.
        entity: The entity.
        several: Whether the field may select several values, with `match()`.

    Raises:
        InvalidInputError: The entity has no such field, or it is malformed.
    """
    column, dot, _ = text.partition(".")
    check_column(entity, column)
    if not dot:
        return Field(column=column, text=text)
    if column not in NESTED:
        raise InvalidInputError(f"the field {column} has no parts")
    path: list[Step] = []
    place = len(column)
    while place < len(text):
        matching = _MATCH.match(text, place)
        part = matching or _PART.match(text, place)
        if part is None or len(path) > MAX_STEPS:
            raise InvalidInputError(
                f"the field {text[:60]!r} is malformed",
                hint='facts.a.b, facts.a[0], facts."a.b".c',
            )
        if matching is not None and not several:
            raise InvalidInputError("'match()' is supported in comparisons only")
        if matching is not None:
            path.append(Pattern(matching[1]))
        else:
            path.append(part[1] if part[1] is not None else part[2])
            path.extend(int(index) for index in re.findall(r"[0-9]+", part[3]))
        place = part.end()
    return Field(column=column, path=tuple(path), text=text)
