"""The changes that a noop run foresees, without values, so that they may leave the node.

- A change is a resource's type and title, the property, and a *mark*: a keyed hash over these, the
  current value and the desired one. Two changes with one mark are the same change.
- The key never leaves the node, so no other machine can find a value by trying marks.
- For a value that Puppet hides (Sensitive), the report and so the mark have only the fact of a
  change.
- A mark is of a property: the command of an Exec is not a property and so not in it; the title is.
"""

import hashlib
import hmac
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.fields import Fields
from localpuppet.base.formats.json_text import canonical
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.values import Json
from localpuppet.base.value import Value

# Of one node. Beyond either of these it tells how many there are, and none of them.
MAX_CHANGES = 1000
MAX_TOLD = 160 * 1024  # bytes as JSON
MAX_NAME = 300  # characters of a type, a title, a property, as published
MAX_TOTAL = 1_000_000
MARK_DIGITS = 32
SALT_DIGITS = 32
_KEYED_FOR = b"localpuppet changes "


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class PropertyChange:
    """A property that would change.

    Attributes:
        type: The resource's type.
        title: Its title, cut if long.
        property: The property; empty if Puppet names none, as for a refresh.
        mark: The keyed hash, hexadecimal.
    """

    type: str
    title: str
    property: str
    mark: str

    def __str__(self) -> str:
        """Return `File[/etc/motd] content`, for people."""
        return f"{self.type}[{self.title}] {self.property or 'refresh'}"


class PredictedChanges(Value):
    """The changes that a node's noop run foresees.

    Attributes:
        release: The release of that run.
        total: How many properties would change.
        changes: The changes, sorted; empty if they exceed the limit.
    """

    release: str
    total: int
    changes: tuple[PropertyChange, ...]

    @property
    def whole(self) -> bool:
        """Whether all changes are listed."""
        return self.total == len(self.changes)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "PredictedChanges":
        """Return what `to_dict` made.

        Raises:
            InvalidInputError: The form is wrong, or a limit is exceeded.
        """
        fields = Fields(raw, where="changes")
        fields.only(("release", "total", "changes"))
        values = fields.values("changes")
        if len(values) > MAX_CHANGES:
            raise InvalidInputError(f"has more than {MAX_CHANGES} changes", where="changes")
        return cls(
            release=_name(fields.text("release")),
            total=fields.integer("total", minimum=len(values), maximum=MAX_TOTAL),
            changes=tuple(sorted(map(_change, values))),
        )

    def to_dict(self) -> dict[str, Json]:
        """Return the JSON form."""
        return {
            "release": self.release,
            "total": self.total,
            "changes": [
                [change.type, change.title, change.property, change.mark] for change in self.changes
            ],
        }


def together(before: PredictedChanges | None, now: PredictedChanges) -> PredictedChanges:
    """Return the changes of two noop runs of a node, each change once.

    Args:
        before: Those of the first run, or `None`.
        now: Those of the second run.
    """
    if before is None:
        return now
    changes = tuple(sorted({*before.changes, *now.changes}))
    untold = before.total - len(before.changes) + now.total - len(now.changes)
    total = min(len(changes) + untold, MAX_TOTAL)
    reported = changes if len(changes) <= MAX_CHANGES else ()
    return PredictedChanges(release=now.release, total=total, changes=reported)


def key_of(secret: bytes, salt: str) -> bytes:
    """Return the key of marks; marks with different salts cannot be compared."""
    return hmac.digest(secret, _KEYED_FOR + salt.encode("ascii"), "sha256")


def parse_salt(text: str) -> str:
    """Return a salt.

    Raises:
        InvalidInputError: The text is not a salt.
    """
    if not _is_hex(text, SALT_DIGITS):
        raise InvalidInputError("is not a salt")
    return text


def foreseen(raw: Mapping[str, Any], *, release: str, key: bytes) -> PredictedChanges:
    """Return the changes in the report of a noop run.

    Args:
        raw: Puppet's JSON report.
        release: The release of the run.
        key: See `key_of`.

    Raises:
        ValueError: The value is not a report.
    """
    try:
        in_order = sorted(set(_changes(raw, key)))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a Puppet report: {error!r}") from error
    predicted = PredictedChanges(
        release=one_line(release)[:MAX_NAME], total=len(in_order), changes=tuple(in_order)
    )
    if len(in_order) > MAX_CHANGES or len(json.dumps(predicted.to_dict())) > MAX_TOLD:
        return PredictedChanges(
            release=predicted.release, total=min(predicted.total, MAX_TOTAL), changes=()
        )
    return predicted


def _changes(raw: Mapping[str, Any], key: bytes) -> Iterator[PropertyChange]:
    for resource in (raw.get("resource_statuses") or {}).values():
        for event in resource.get("events") or ():
            if event.get("status") != "noop":
                continue
            names = [str(resource["resource_type"]), str(resource["title"])]
            names.append(str(event.get("property") or ""))
            values = [event.get("previous_value"), event.get("desired_value")]
            mark = hmac.digest(key, canonical([names, values]), hashlib.sha256).hex()[:MARK_DIGITS]
            kind, title, name = (one_line(item)[:MAX_NAME] for item in names)
            yield PropertyChange(type=kind, title=title, property=name, mark=mark)


def _change(value: Json) -> PropertyChange:
    if not isinstance(value, list) or len(value) != 4:
        raise InvalidInputError("is not a change", where="changes")
    names = [_name(name) for name in value]
    if not _is_hex(names[3], MARK_DIGITS):
        raise InvalidInputError("has no mark", where="changes")
    return PropertyChange(type=names[0], title=names[1], property=names[2], mark=names[3])


def _name(value: Json) -> str:
    if not isinstance(value, str):
        raise InvalidInputError("is not text", where="changes")
    return one_line(value)[:MAX_NAME]


def _is_hex(text: str, digits: int) -> bool:
    return len(text) == digits and not set(text) - set("0123456789abcdef")
