"""JetStream's API: questions as JSON, and what their answers mean.

Refuses to know: the stream (`bus.nats.stream`), and how a question is sent (`bus.nats.connection`).
"""

import json
from collections.abc import Mapping
from typing import Any

from localpuppet.bus.nats.connection import NatsConnection
from localpuppet.bus.nats.link import Msg
from localpuppet.formats.strict_json import loads
from localpuppet.formats.text import one_line


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

    def result(self, answer: Msg, accept: tuple[int, ...]) -> dict[str, Any] | None:
        """Return what an answer says, `None` for an error that is expected.

        Raises:
            UnavailableError: It is no answer of JetStream's, or another error.
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
        ValueError: It is none: whoever answers is no server of NATS.
    """
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
    if not all(type(number) is int for number in numbers):
        raise ValueError("a number that is none")
    return raw
