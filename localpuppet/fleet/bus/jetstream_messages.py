"""JetStream's API, the bus's streams and keys as their subjects: requests, answers, expiry.

An older server (before 2.11, or a stream without `allow_msg_ttl`) keeps a message for ever, with
its ttl in its first line. The message has expired when the *server's* clock says so. The server
reports its time when it creates a consumer; from then on the local monotonic clock counts, less
`SLACK`. The local time of day is not used: a node with a wrong clock neither sees expired values
nor loses valid ones.

`/a/b.c` is `lp.a.b~c`: the components of a key become tokens, its dots become `~`, which no key
has. All other characters of keys are valid in tokens. Inventory and history have a separate stream,
and so another first token.
"""

import json
import re
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from localpuppet.base.formats.strict_json import loads
from localpuppet.base.formats.text import one_line
from localpuppet.base.value import Value
from localpuppet.fleet.bus.bus_limits import MAX_NATS_ANSWER, MAX_NATS_VALUES
from localpuppet.fleet.bus.key_value import MAX_REVISION, FullError, KeyValueEntry, parse_revision
from localpuppet.fleet.bus.layout import CATALOGS, EXPORTS, HISTORY, INVENTORY, TOMBSTONES
from localpuppet.fleet.bus.nats_link import NatsConnection
from localpuppet.fleet.bus.servers import Servers

# Tolerances: seconds, and a part of the time since the server reported its time.
SLACK = 0.5
DRIFT = 0.001
_HEAD = re.compile(rb"(-?)([0-9]{1,12}\.[0-9]{3})?\n")


class NatsMessage(Value):
    """The last message of a key, or the marker of its removal; it expires by the server's clock."""

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
    """Return the body of a message or of a removal's marker: its ttl to the ms, and its value.

    The ttl is not in headers: a server republishes a message without headers for two thirds of the
    work.
    """
    head = b"" if ttl is None else b"%.3f" % ttl
    return (b"-" if removed else b"") + head + b"\n" + value


def unpacked(key: str, data: bytes, *, revision: int, stored: float) -> NatsMessage:
    """Return the message in a body that was stored at a time; an invalid body counts as expired.

    Any client that may write a key can write any body, so a reader must not fail.
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
    """Return the message that a consumer sent; see `unpacked`."""
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


# Limits of one batch of a read: the server drops clients for which it must hold 64 MiB.
BATCH = 500
BATCH_BYTES = 4 * 1024 * 1024
# Messages of a batch if each may have the server's default maximum of 1 MiB.
CAREFUL = 8
# Errors of a server that cannot store a message: resources, memory, storage, the stream's limits.
_FULL = (10023, 10028, 10047, 10077)


class JetStream:
    def __init__(self, connection: NatsConnection) -> None:
        self._connection = connection

    async def call(
        self, method: str, body: Mapping[str, Any], *, accept: tuple[int, ...] = ()
    ) -> dict[str, Any] | None:
        """Send a request, `STREAM.INFO.NAME`; return the answer, `None` for an expected error."""
        payload = json.dumps(body).encode() if body else b""
        subject = f"{self._connection.api}.{method}"
        return self.result(await self._connection.request(subject, payload), accept)

    async def fetched(self, stream: str, consumer: str, *, size: int) -> AsyncGenerator[Msg, None]:
        """Yield the messages of a consumer, in batches of `BATCH`, or `CAREFUL` after a flood."""
        body: dict[str, object] = {"batch": size, "no_wait": True}
        # 2.9 skips a message beyond max_bytes: there, the client counts the bytes itself.
        if server_version(self._connection.version) >= (2, 10):
            body["max_bytes"] = BATCH_BYTES
        subject = f"{self._connection.api}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        link = await self._connection.link()
        async for message in link.batches(subject, body, size=size):
            try:
                parse_revision(message.metadata.sequence.stream)
            except (ValueError, NatsError) as error:
                raise self._connection.without_jetstream() from error
            yield message

    def result(self, answer: Msg, accept: tuple[int, ...]) -> dict[str, Any] | None:
        """Return the result in an answer, `None` for an expected error."""
        try:
            result = _read(answer.data)
        except ValueError as error:
            raise self._connection.without_jetstream() from error
        problem = result.get("error")
        if problem is None:
            return result
        if problem.get("err_code") in accept:
            return None
        description = one_line(f"JetStream: {problem.get('description', problem)}")
        if problem.get("err_code") in _FULL:
            raise FullError(
                f"is full: {description}",
                where=self._connection.where,
                hint="raise the stream's max_bytes, or the server's limits",
            )
        raise self._connection.problem(description)


def _read(data: bytes) -> dict[str, Any]:
    """Return an answer of JetStream as JSON; the fields used have the right types."""
    if len(data) > MAX_NATS_ANSWER:
        raise ValueError(f"an answer of {len(data)} bytes")
    raw = loads(data, values=MAX_NATS_VALUES)
    if not isinstance(raw, dict):
        raise ValueError("no answer of JetStream")
    parts = [raw.get(key, {}) for key in ("config", "state", "error")]
    if not all(isinstance(part, dict) for part in parts):
        raise ValueError("no answer of JetStream")
    if not isinstance(raw.get("state", {}).get("subjects") or {}, dict):
        raise ValueError("no answer of JetStream")
    numbers = (
        raw.get("seq", 0),
        raw.get("num_pending", 0),
        raw.get("state", {}).get("last_seq", 0),
        raw.get("state", {}).get("num_subjects", 0),
    )
    if not all(type(number) is int and 0 <= number <= MAX_REVISION for number in numbers):
        raise ValueError("an invalid number")
    return raw


class SubjectRange(Value):
    """A stream's part of the subjects; its name is that of the settings, then `suffix`."""

    kept: str
    live: str
    suffix: str


# Transient keys: an operator may set a maximum age for this stream.
PASSING = SubjectRange(kept="lp", live="lp-live", suffix="")
# Lasting keys, until a newer value: no maximum age, and a separate size limit.
LASTING = SubjectRange(kept="lp-inventory", live="lp-inventory-live", suffix="-inventory")
PLACES = (PASSING, LASTING)
_LASTING = (INVENTORY, EXPORTS, CATALOGS, HISTORY, TOMBSTONES)
_TO_SUBJECT = str.maketrans({"/": ".", ".": "~"})
_TO_KEY = str.maketrans({".": "/", "~": "."})


def place_of(key: str) -> SubjectRange:
    """Return the place of a key, or of a prefix of keys."""
    return LASTING if key.startswith(_LASTING) else PASSING


def subject_of(prefix: str, key: str) -> str:
    """Return the subject of a key below `prefix` (`lp`)."""
    return prefix + key.translate(_TO_SUBJECT)


def subjects_below(prefix: str, keys: str) -> str:
    """Return the subject that matches all keys below a prefix of keys (`/a/`)."""
    return subject_of(prefix, keys) + ">"


def key_of(prefix: str, subject: str) -> str:
    """Return the key of a subject below `prefix`."""
    return subject[len(prefix) :].translate(_TO_KEY)


def inbox_of(name: str) -> str:
    """Return the prefix of the subjects for answers to a node or a person."""
    return "_INBOX_" + name.translate(_TO_SUBJECT)


# Settings that localpuppet requires; an operator's own limits stay.
_NEEDED = ("allow_direct", "republish", "max_msgs_per_subject", "allow_msg_ttl")
# Settings that apply unless the operator has set them.
_DEFAULTS = ("consumer_limits",)
# Nanoseconds after which the server removes an unused consumer: the longest `timeout` of a bus.
# Otherwise a node could name years, and use up the server's consumers for all.
_UNUSED = 300 * 10**9


def stream_name(servers: Servers, place: SubjectRange) -> str:
    return servers.stream + place.suffix


def advisories(stream: str, event: str = "*") -> str:
    """Return the subject on which the server reports that a stream was `CREATED` or `DELETED`."""
    return f"$JS.EVENT.ADVISORY.STREAM.{event}.{stream}"


def wanted_stream(
    servers: Servers, place: SubjectRange, *, version: tuple[int, int]
) -> dict[str, Any]:
    """Return the configuration of the stream, in the fields of JetStream's API."""
    config: dict[str, Any] = {
        "name": stream_name(servers, place),
        "subjects": [f"{place.kept}.>"],
        "storage": "file",
        "retention": "limits",
        "num_replicas": servers.replicas,
        "max_msgs_per_subject": 1,
        "max_bytes": servers.max_bytes,
        # A full stream rejects writes: the oldest value may still be in use.
        "discard": "new",
        "allow_direct": True,
        # The server republishes only stored messages, with their sequence: a rejected or lost
        # message is never reported, and clients that may write a key cannot forge one.
        "republish": {"src": f"{place.kept}.>", "dest": f"{place.live}.>"},
    }
    if version >= (2, 10):
        config["consumer_limits"] = {"inactive_threshold": _UNUSED}
    if version >= (2, 11):
        config["allow_msg_ttl"] = True
    return config


def mended_stream(config: Mapping[str, Any], wanted: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the configuration that an existing stream needs; `None` if it needs no change."""
    names = (*_NEEDED, *(key for key in _DEFAULTS if not config.get(key)))
    needed = {key: wanted[key] for key in names if key in wanted}
    if all(config.get(key) == value for key, value in needed.items()):
        return None
    return {**config, **needed}


def deliver_policy(after: int | None) -> dict[str, object]:
    """Return a consumer's policy: messages after a sequence, or else the last of each key."""
    if after is None:
        return {"deliver_policy": "last_per_subject"}
    return {"deliver_policy": "by_start_sequence", "opt_start_seq": after + 1}
