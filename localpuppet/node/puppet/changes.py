"""What a run with noop would have changed, as it may leave the node: no value is in it.

Owns: which events of Puppet's report count, the form in which they are told, and its limits.
Refuses to know: where a report and the key are kept, what is done with what is told.

- A change is a resource's type and title, the property, and a *mark*: a keyed hash over these, the
  value that is there and the one that is wanted. Two changes with one mark are the same change.
- The key is the node's own and never leaves it: nobody else can try values until a mark fits.
- Of a value that Puppet hides (Sensitive) it says no more in a report than that it would change,
  and so the mark says no more.
- A mark is of a property: the command of an Exec, which is not one, is not in it; its title is.
"""

import hashlib
import hmac
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.fields import Fields
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.values import Json

# Of one node. Beyond either of these it tells how many there are, and none of them.
MAX_CHANGES = 1000
MAX_TOLD = 160 * 1024  # bytes as JSON
MAX_NAME = 300  # characters of a type, a title, a property, as they are told
MAX_TOTAL = 1_000_000
MARK_DIGITS = 32
SALT_DIGITS = 32
_KEYED_FOR = b"localpuppet changes "


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Change:
    """A property that would change.

    Attributes:
        type: The resource's type.
        title: Its title; the first characters of a long one.
        property: The property; empty where Puppet names none, as for a refresh.
        mark: The keyed hash, hexadecimal.
    """

    type: str
    title: str
    property: str
    mark: str

    def __str__(self) -> str:
        """Return `File[/etc/motd] content`, as people name it."""
        return f"{self.type}[{self.title}] {self.property or 'refresh'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreseen:
    """What a node says that a run would change.

    Attributes:
        release: What it would run.
        total: How many properties would change.
        changes: These, sorted; empty where they are too many to be told.
    """

    release: str
    total: int
    changes: tuple[Change, ...]

    @property
    def whole(self) -> bool:
        """Whether all changes are told."""
        return self.total == len(self.changes)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "Foreseen":
        """Return what `to_dict` made.

        Raises:
            InvalidInputError: It is not of that form, or beyond a limit.
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
            "changes": [[one.type, one.title, one.property, one.mark] for one in self.changes],
        }


def together(before: Foreseen | None, now: Foreseen) -> Foreseen:
    """Return what two runs of a node would change, each change once.

    Args:
        before: What the first of them would; `None` where there was none.
        now: What the second would.
    """
    if before is None:
        return now
    changes = tuple(sorted({*before.changes, *now.changes}))
    untold = before.total - len(before.changes) + now.total - len(now.changes)
    total = min(len(changes) + untold, MAX_TOTAL)
    told = changes if len(changes) <= MAX_CHANGES else ()
    return Foreseen(release=now.release, total=total, changes=told)


def key_of(secret: bytes, salt: str) -> bytes:
    """Return the key of marks: marks that were made with different salts cannot be compared."""
    return hmac.digest(secret, _KEYED_FOR + salt.encode("ascii"), "sha256")


def parse_salt(text: str) -> str:
    """Return a salt.

    Raises:
        InvalidInputError: It is not one.
    """
    if not _is_hex(text, SALT_DIGITS):
        raise InvalidInputError("is not a salt")
    return text


def foreseen(raw: Mapping[str, Any], *, release: str, key: bytes) -> Foreseen:
    """Return what a report says that would change.

    Args:
        raw: Puppet's JSON report.
        release: What was run.
        key: See `key_of`.

    Raises:
        ValueError: It is not a report.
    """
    try:
        found = sorted(set(_changes(raw, key)))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a Puppet report: {error!r}") from error
    told = Foreseen(release=one_line(release)[:MAX_NAME], total=len(found), changes=tuple(found))
    if len(found) > MAX_CHANGES or len(json.dumps(told.to_dict())) > MAX_TOLD:
        return Foreseen(release=told.release, total=min(told.total, MAX_TOTAL), changes=())
    return told


def _changes(raw: Mapping[str, Any], key: bytes) -> Iterator[Change]:
    for resource in (raw.get("resource_statuses") or {}).values():
        for event in resource.get("events") or ():
            if event.get("status") != "noop":
                continue
            names = [str(resource["resource_type"]), str(resource["title"])]
            names.append(str(event.get("property") or ""))
            values = [event.get("previous_value"), event.get("desired_value")]
            text = json.dumps([names, values], sort_keys=True, separators=(",", ":"))
            mark = hmac.digest(key, text.encode(), hashlib.sha256).hex()[:MARK_DIGITS]
            kind, title, name = (one_line(one)[:MAX_NAME] for one in names)
            yield Change(type=kind, title=title, property=name, mark=mark)


def _change(value: Json) -> Change:
    if not isinstance(value, list) or len(value) != 4:
        raise InvalidInputError("is not a change", where="changes")
    names = [_name(one) for one in value]
    if not _is_hex(names[3], MARK_DIGITS):
        raise InvalidInputError("has no mark", where="changes")
    return Change(type=names[0], title=names[1], property=names[2], mark=names[3])


def _name(value: Json) -> str:
    if not isinstance(value, str):
        raise InvalidInputError("is not text", where="changes")
    return one_line(value)[:MAX_NAME]


def _is_hex(text: str, digits: int) -> bool:
    return len(text) == digits and not set(text) - set("0123456789abcdef")
