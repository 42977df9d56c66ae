"""A message of the bus's stream, and whether it has expired by the server's clock.

An older server (before 2.11, or a stream without `allow_msg_ttl`) keeps a message for ever, with
its ttl in its first line. The message has expired when the *server's* clock says so. The server
reports its time when it creates a consumer; from then on the local monotonic clock counts, less
`SLACK`. The local time of day is not used: a node with a wrong clock neither sees expired values
nor loses valid ones.
"""

import re
import time
from contextlib import suppress
from datetime import datetime

from localpuppet.base.value import Value
from localpuppet.fleet.bus.key_value import KeyValueEntry
from localpuppet.fleet.bus.nats.link import Msg

# Tolerances: seconds, and a part of the time since the server reported its time.
SLACK = 0.5
DRIFT = 0.001
_HEAD = re.compile(rb"(-?)([0-9]{1,12}\.[0-9]{3})?\n")


class NatsMessage(Value):
    """The last message of a key.

    Attributes:
        entry: Its key, value and sequence.
        removed: Whether it is the marker of a removal.
        expires: When it expires by the server's clock, in seconds since 1970; `None` for never.
    """

    entry: KeyValueEntry
    removed: bool
    expires: float | None


class ServerClock:
    """The server's clock: the last time that it reported, and how long ago that was."""

    def __init__(self) -> None:
        self._server_time: tuple[float, float] | None = None

    @property
    def known(self) -> bool:
        """Return whether the server has reported a time."""
        return self._server_time is not None

    def learn(self, text: str) -> None:
        """Record a timestamp that the server has just made; invalid text is ignored."""
        with suppress(ValueError):
            self._server_time = (seconds(text), time.monotonic())

    def passed(self) -> float:
        """Return a time, in seconds since 1970, that the server's clock has certainly passed."""
        if self._server_time is None:
            return 0.0
        server_time, at = self._server_time
        return server_time + (time.monotonic() - at) * (1 - DRIFT) - SLACK


def packed(value: bytes, *, ttl: float | None, removed: bool = False) -> bytes:
    """Return the body of a message: a line with its ttl, and its value.

    The ttl is not in headers: a server republishes a message without headers for two thirds of the
    work.

    Args:
        value: The value.
        ttl: Seconds until it expires, down to the millisecond; `None` for never.
        removed: Whether it is the marker of a removal.
    """
    head = b"" if ttl is None else b"%.3f" % ttl
    return (b"-" if removed else b"") + head + b"\n" + value


def unpacked(key: str, data: bytes, *, revision: int, stored: float) -> NatsMessage:
    """Return the message in a body; an invalid body counts as expired.

    Any client that may write a key can write any body, so a reader must not fail.

    Args:
        key: Its key.
        data: Its body.
        revision: Its sequence.
        stored: When the server stored it, in seconds since 1970.
    """
    head = _HEAD.match(data)
    if head is None:
        return NatsMessage(
            entry=KeyValueEntry(key=key, value=b"", revision=revision), removed=False, expires=0.0
        )
    return NatsMessage(
        entry=KeyValueEntry(key=key, value=data[head.end() :], revision=revision),
        removed=bool(head[1]),
        expires=stored + float(head[2]) if head[2] else None,
    )


def fetched(key: str, message: Msg) -> NatsMessage:
    """Return the message that a consumer sent; see `unpacked`.

    Args:
        key: The key of its subject.
        message: The message.
    """
    data = message.metadata
    return unpacked(
        key,
        message.data,
        revision=data.sequence.stream,
        stored=data.timestamp.timestamp(),
    )


def server_version(version: str) -> tuple[int, int]:
    """Return the first two numbers of a server's version; zeros if it has none."""
    parts = version.split(".")
    numbers = [int(part) for part in parts[:2] if part.isdecimal() and len(part) < 10]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (0, 0)


def seconds(text: str) -> float:
    """Return seconds since 1970 of a time in Go's format, down to nanoseconds."""
    head, _, rest = text.partition(".")
    zone = rest.lstrip("0123456789") if rest else ""
    fraction = rest[: len(rest) - len(zone)]
    moment = datetime.fromisoformat(head + (zone or ("" if not rest else "Z")))
    return moment.timestamp() + (float(f"0.{fraction}") if fraction else 0.0)
