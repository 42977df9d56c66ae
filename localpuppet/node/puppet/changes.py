"""What a noop run foresees, and Puppet's output, without values: both may leave the node.

- A change is a resource's type and title, the property, and a *mark*: a keyed hash over these, the
  current value and the desired one. Two changes with one mark are the same change.
- The key never leaves the node, so no other machine can find a value by trying marks.
- For a value that Puppet hides (Sensitive), the report and so the mark have only the fact of a
  change.
- A mark is of a property: the command of an Exec is not a property and so not in it; the title is.

Puppet prints a diff as one message of a resource, which begins with an empty line:

    Notice: /Stage[main]/Main/File[/etc/motd]/content:
    --- /etc/motd   2026-11-22 08:32:00
    +++ /tmp/puppet-file20261122-21266-o8qhwk
    @@ -1 +1 @@
    -old
    +new
    Notice: /Stage[main]/Main/File[/etc/motd]/content: content changed '{sha256}…' to '{sha256}…'

- A unified diff ends with the next message, which none of its lines can resemble.
- A site may use another diff program, whose lines may look like anything: such a diff ends only
  with the next message of the same resource.
"""

import hashlib
import hmac
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, NamedTuple

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.converter import AllowedRange, Message
from localpuppet.base.formats.strict_json import canonical
from localpuppet.base.formats.text import one_line

# Of one node. Beyond either of these it tells how many there are, and none of them.
MAX_CHANGES = 1000
MAX_TOLD = 160 * 1024  # bytes as JSON
MAX_NAME = 300  # characters of a type, a title, a property, as published
MAX_TOTAL = 1_000_000
MARK_DIGITS = 32
SALT_DIGITS = 32
_KEYED_FOR = b"localpuppet changes "


def _name(text: str) -> str:
    return one_line(text)[:MAX_NAME]


def _mark(text: str) -> str:
    if not _is_hex(text, MARK_DIGITS):
        raise InvalidInputError("is not a mark")
    return text


class PropertyChange(NamedTuple):
    """A property that would change: none for a refresh. A long title is cut."""

    type: Annotated[str, _name]
    title: Annotated[str, _name]
    property: Annotated[str, _name]
    mark: Annotated[str, _mark]

    def __str__(self) -> str:
        """Return `File[/etc/motd] content`, for people."""
        return f"{self.type}[{self.title}] {self.property or 'refresh'}"


class PredictedChanges(Message):
    """The changes that a node's noop run foresees, sorted; none if they exceed the limit."""

    WHERE: ClassVar = "changes"
    release: Annotated[str, _name]
    total: Annotated[int, AllowedRange(minimum=0, maximum=MAX_TOTAL)]
    changes: Annotated[tuple[PropertyChange, ...], AllowedRange(maximum=MAX_CHANGES)]

    def __post_init__(self) -> None:
        if self.total < len(self.changes) or list(self.changes) != sorted(self.changes):
            raise InvalidInputError("are not sorted, or more than their total")

    @property
    def whole(self) -> bool:
        return self.total == len(self.changes)


def together(before: PredictedChanges | None, now: PredictedChanges) -> PredictedChanges:
    """Return the changes of two noop runs of a node, each change once."""
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
    if not _is_hex(text, SALT_DIGITS):
        raise InvalidInputError("is not a salt")
    return text


def foreseen(raw: Mapping[str, Any], *, release: str, key: bytes) -> PredictedChanges:
    """Return the changes in the report of a noop run.

    Args:
        key: See `key_of`.
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


def _is_hex(text: str, digits: int) -> bool:
    return len(text) == digits and not set(text) - set("0123456789abcdef")


_MESSAGE = re.compile(r"(?:Debug|Info|Notice|Warning|Error|Alert|Emerg|Crit): ")
# A resource's message without a word in its first line.
_EMPTY = re.compile(
    rf"{_MESSAGE.pattern}(?P<source>(?:/.*\]/[\w.-]+|\w[\w:]*\[.*\]\(provider=[^)]*\)):) ?"
)
_UNIFIED = "--- "
# How lines end that `_EMPTY` matches; where a carriage return is, lines may end in other ways.
_ENDS_OF_EMPTY = (b":\n", b": \n", b"\r")


class Diffs:
    """Takes lines of output in order, and leaves out the contents of files."""

    def __init__(self) -> None:
        self._source: str | None = None  # whose diff this is
        self._unified: bool | None = None

    def may_be_in(self, piece: bytes) -> bool:
        """Return whether some of the next lines may be the contents of a file, by a quick check.

        Args:
            piece: Whole lines, as bytes of a file.
        """
        return self._source is not None or any(end in piece for end in _ENDS_OF_EMPTY)

    def without(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield the lines, which have no newlines, that are not the contents of a file."""
        for line in lines:
            message = _MESSAGE.match(line)
            if self._source is not None:
                if self._unified is None:
                    self._unified = line.startswith(_UNIFIED)
                is_own = message is not None and line[message.end() :].startswith(self._source)
                if message is None or not (self._unified or is_own):
                    continue
            match = _EMPTY.fullmatch(line)
            self._source, self._unified = (match["source"] if match else None), None
            yield line
