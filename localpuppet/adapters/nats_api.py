"""JetStream's API: questions as JSON, and what their answers mean.

Refuses to know: the stream (`nats_stream`), and how a question is sent (`nats_connection`).
"""

import json
from collections.abc import Mapping
from typing import Any

from localpuppet.adapters.nats_connection import NatsConnection
from localpuppet.adapters.nats_link import Msg
from localpuppet.adapters.nats_message import read_answer
from localpuppet.model.text import one_line


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
            result = read_answer(answer.data)
        except ValueError as error:
            raise self._connection.problem("does not answer as JetStream does") from error
        problem = result.get("error")
        if problem is None:
            return result
        if problem.get("err_code") in accept:
            return None
        said = one_line(f"JetStream: {problem.get('description', problem)}")
        raise self._connection.problem(said)
