"""JetStream's API: requests in JSON, and the interpretation of answers.

`bus.nats.connection` sends requests; `bus.nats.stream` uses this API for its stream.
"""

import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from localpuppet.base.formats.strict_json import loads
from localpuppet.base.formats.text import one_line
from localpuppet.fleet.bus.key_value import MAX_REVISION, FullError, parse_revision
from localpuppet.fleet.bus.nats.connection import NatsConnection
from localpuppet.fleet.bus.nats.link import Msg, NatsError
from localpuppet.fleet.bus.nats.message import server_version

# Bytes of an answer: some 30,000 keys. Once parsed, it takes twenty times as much memory.
MAX_ANSWER = 2 * 1024 * 1024


# Limits of one batch of a read: the server drops clients for which it must hold 64 MiB.
BATCH = 500
BATCH_BYTES = 4 * 1024 * 1024
# Messages of a batch if each may have the server's default maximum of 1 MiB.
CAREFUL = 8
# Errors of a server that cannot store a message: resources, memory, storage, the stream's limits.
_FULL = (10023, 10028, 10047, 10077)


class JetStream:
    """The API.

    Args:
        connection: A connection to a server with JetStream.
    """

    def __init__(self, connection: NatsConnection) -> None:
        self._connection = connection

    async def call(
        self, method: str, body: Mapping[str, Any], *, accept: tuple[int, ...] = ()
    ) -> dict[str, Any] | None:
        """Send a request; return the answer, `None` for an expected error.

        Args:
            method: The subject after the API's prefix (`STREAM.INFO.NAME`).
            body: The request; no payload if it is empty.
            accept: Numbers of expected errors.
        """
        payload = json.dumps(body).encode() if body else b""
        subject = f"{self._connection.api}.{method}"
        return self.result(await self._connection.request(subject, payload), accept)

    async def fetched(self, stream: str, consumer: str, *, size: int) -> AsyncGenerator[Msg, None]:
        """Yield the messages of a consumer, requested in batches.

        Args:
            stream: The name of its stream.
            consumer: Its name.
            size: Maximum messages of a batch: `BATCH`, or `CAREFUL` after a flood.

        Raises:
            FloodError: A batch exceeds the size limit.
            StalledError: The consumer stops before the end.
        """
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
                raise self._connection.problem("does not answer as JetStream does") from error
            yield message

    def result(self, answer: Msg, accept: tuple[int, ...]) -> dict[str, Any] | None:
        """Return the result in an answer, `None` for an expected error."""
        try:
            result = _read(answer.data)
        except ValueError as error:
            raise self._connection.problem("does not answer as JetStream does") from error
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
    """Return an answer of JetStream as JSON; the fields used have the right types.

    Raises:
        ValueError: The answer has another form: it is not from a NATS server.
    """
    if len(data) > MAX_ANSWER:
        raise ValueError(f"an answer of {len(data)} bytes")
    raw = loads(data)
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
    )
    if not all(type(number) is int and 0 <= number <= MAX_REVISION for number in numbers):
        raise ValueError("an invalid number")
    return raw
