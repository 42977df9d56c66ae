"""Times and durations in the forms that people and records use."""

import re
from datetime import UTC, datetime
from typing import Annotated

from localpuppet.base.errors import InvalidInputError

LONGEST = 10 * 365 * 86400.0
# The end of the year 9999, the last one that a time can have, in seconds since 1970.
LAST_TIME = 253_402_300_799.0
_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)([smhdw]?)")


def parse_duration(text: str, *, where: str = "") -> float:
    """Return the seconds of `90`, `1.5`, `30m`, `1h30m`, `2d`.

    Raises:
        InvalidInputError: The text has another form, is not positive, or exceeds ten years.
    """
    parts = _PART.findall(text)
    whole = "".join(number + unit for number, unit in parts)
    plain = len(parts) == 1 or all(unit for _, unit in parts)
    if not parts or whole != text or not plain:
        raise InvalidInputError(
            f"{text[:40]!r} is an invalid time",
            where=where,
            hint="a positive time such as 90, 30m, 1h30m or 3d",
        )
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if not 0 < seconds <= LONGEST:
        raise InvalidInputError("must be positive and at most ten years", where=where)
    return seconds


def show_duration(seconds: float) -> str:
    """Return `0.4s`, `5s`, `30m`, `3m 20s`, `2h 5m` or `4d 3h`: at most two units.

    Only a measured time below ten seconds has a decimal: round others before.
    """
    if seconds < 10 and seconds != int(seconds):
        return f"{seconds:.1f}s"
    total = round(seconds)
    for unit, size, lower, lower_size in (
        ("d", 86400, "h", 3600),
        ("h", 3600, "m", 60),
        ("m", 60, "s", 1),
    ):
        if total >= size:
            count, rest = divmod(total, size)
            less = rest // lower_size
            return f"{count}{unit} {less}{lower}" if less else f"{count}{unit}"
    return f"{total}s"


def show_time(moment: datetime) -> str:
    """Return a time as records have it: ISO 8601, UTC, microseconds."""
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def show_epoch(seconds: float) -> str:
    """Return seconds since 1970 in the form of PuppetDB and Puppet's reports: milliseconds, UTC."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def parse_time(text: str) -> datetime:
    """Return the aware time in `text`.

    Raises:
        ValueError: The text is not ISO 8601 with a zone, or outside of the years that UTC has.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"no time zone in {text!r}")
    try:
        moment.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(f"outside of the years 1 to 9999 in UTC: {text!r}") from error
    return moment


def checked_time(text: str) -> str:
    """Return a time as text, unchanged, after `parse_time` has accepted it.

    Raises:
        ValueError: See `parse_time`.
    """
    parse_time(text)
    return text


TimeText = Annotated[str, checked_time]  # the type of a field
