"""JetStream's API: questions as JSON, and what their answers mean.

Refuses to know: the stream (`bus.nats.stream`), and how a question is sent (`bus.nats.connection`).
"""

import json
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from localpuppet.base.formats.strict_json import loads
from localpuppet.base.formats.text import one_line
from localpuppet.fleet.bus.key_value import MAX_REVISION, parse_revision
from localpuppet.fleet.bus.nats.connection import NatsConnection
from localpuppet.fleet.bus.nats.link import Msg, NatsError
from localpuppet.fleet.bus.nats.message import server_version

# Bytes of an answer: the names of some 30,000 keys. Once it is read, it takes twenty times as much.
MAX_ANSWER = 2 * 1024 * 1024


# Messages and bytes of one batch of a read: the server drops clients for which it must hold 64 MiB.
BATCH = 500
BATCH_BYTES = 4 * 1024 * 1024
# Messages of a batch of which each may be as large as a server takes by default, 1 MiB.
CAREFUL = 8


class JetStream:
    """The API.

    Args:
        connection: To a server that has it.
    """

    def __init__(self, connection: NatsConnection) -> None:
        self._connection = connection

    async def call(
        self, method: str, body: Mapping[str, Any], *, accept: tuple[int, ...] = ()
    ) -> dict[str, Any] | None:
        """Ask; return the answer, `None` for an error that is expected.

        Args:
            method: What comes after the API's prefix (`STREAM.INFO.NAME`).
            body: What is asked; nothing when it is empty.
            accept: Numbers of errors that are expected.

        Raises:
            UnavailableError: The server does not answer, refuses us, or tells another error.
        """
        payload = json.dumps(body).encode() if body else b""
        subject = f"{self._connection.api}.{method}"
        return self.result(await self._connection.request(subject, payload), accept)

    async def fetched(self, stream: str, consumer: str, *, size: int) -> AsyncGenerator[Msg, None]:
        """Yield what a consumer has to send, in batches.

        Args:
            stream: The name of its stream.
            consumer: Its name.
            size: The most messages of a batch: `BATCH`, or `CAREFUL` after a flood.

        Raises:
            UnavailableError: The consumer does not send everything in time.
            FloodError: A batch is larger than what we hold.
            StalledError: The consumer stops in between.
        """
        body: dict[str, object] = {"batch": size, "no_wait": True}
        # 2.9 passes over the message that would be too much: then the bytes are for us to count.
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
        """Return what an answer says, `None` for an error that is expected.

        Raises:
            UnavailableError: It is not an answer of JetStream's, or another error.
        """
        try:
            result = _read(answer.data)
        except ValueError as error:
            raise self._connection.problem("does not answer as JetStream does") from error
        problem = result.get("error")
        if problem is None:
            return result
        if problem.get("err_code") in accept:
            return None
        said = one_line(f"JetStream: {problem.get('description', problem)}")
        raise self._connection.problem(said)


def _read(data: bytes) -> dict[str, Any]:
    """Read an answer of JetStream; what we look at in it has its type.

    Raises:
        ValueError: The answer has another form: whoever answers is not a NATS server.
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
        raise ValueError("a number that is none")
    return raw
