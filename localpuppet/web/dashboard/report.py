"""Reads the log of a run as a node sent it, without trusting its form or size."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.text import folded, one_line
from localpuppet.base.formats.times import parse_time, show_epoch
from localpuppet.base.formats.values import Json
from localpuppet.node.puppet.command import in_release

# Lines of a log.
MOST_LINES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOrigin:
    """Where a line of a log comes from.

    Attributes:
        time: When Puppet logged it, as `show_epoch` writes it; empty if unknown.
        file: The file of the resource; empty if unknown.
        line: The line in the file; `None` if unknown.
    """

    time: str = ""
    file: str = ""
    line: int | None = None

    @classmethod
    def read(cls, fields: Json) -> "LogOrigin":
        """Return the origin in an answer, see `runs.run_replies.log_reply`."""
        fields = fields if isinstance(fields, dict) else {}
        try:
            time = show_epoch(parse_time(str(fields.get("time"))).timestamp())
        except ValueError:
            time = ""
        file, line = fields.get("file"), fields.get("line")
        return cls(
            time=time,
            file=one_line(in_release(file)) if isinstance(file, str) else "",
            line=line if isinstance(line, int) else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLogTail:
    """The end of a run's log.

    Attributes:
        lines: The last lines, at most `MOST_LINES`; repeated ones once with their number.
        before: The number of lines before them.
        left_out: The number of omitted diff lines.
        origins: Where lines come from, by their text.
    """

    lines: tuple[str, ...]
    before: int
    left_out: int
    origins: Mapping[str, LogOrigin] = field(default_factory=dict)

    @classmethod
    def read(cls, fields: Mapping[str, Json]) -> "RunLogTail":
        """Return the log in an answer, see `runs.run_replies.log_reply`.

        Raises:
            InvalidInputError: The value is not a log.
        """
        lines = _texts(fields.get("lines", []))
        kept = lines[-MOST_LINES:]
        before = _number(fields.get("before")) + len(lines) - len(kept)
        origins = fields.get("origins")
        listed = origins if isinstance(origins, list) and len(origins) == len(lines) else ()
        return cls(
            lines=tuple(folded(kept)),
            before=before,
            left_out=_number(fields.get("left_out")),
            origins=dict(zip(lines, map(LogOrigin.read, listed), strict=False)),
        )


def _texts(value: Json) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise _bad("a list of texts")
    return tuple(map(str, value))


def _number(value: Json) -> int:
    return value if isinstance(value, int) else 0


def _bad(place: str) -> InvalidInputError:
    return InvalidInputError("is not a valid part of a report", where=f"the node's answer: {place}")
