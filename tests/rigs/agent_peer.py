"""The other end of Puppet's line to the agent, for tests: a real UNIX socket that a test answers.

It speaks the protocol (a JSON object on a line each way) and has no bus. Sockets need short
paths, so each peer has its own directory in the system's place for temporary files.
"""

import json
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

Question = dict[str, Any]
# A mapping is sent as JSON, text as it is; None leaves the connection open without an answer.
Answer = dict[str, Any] | str | None


def agree(question: Question) -> Answer:
    """Answer as an agent whose bus is well."""
    answers: dict[str, dict[str, Any]] = {
        "trigger": {"sent": question.get("hosts"), "dropped": []},
        "leader": {"holder": "web01.example.com", "mine": True},
        "lock": {"revision": 7},
        "unlock": {},
        "kick": {"receivers": ["lb01"], "sent": ["lb01"], "dropped": [], "deferred": True},
        "query": {"answer": [], "warnings": []},
    }
    return {"ok": True, **answers[question["verb"]]}


class Peer:
    """Listens until it is closed; `questions` has the calls in their order."""

    def __init__(self, answer: Callable[[Question], Answer] = agree) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="peer"))
        self.path = self.directory / "agent.sock"
        self.answer = answer
        self.questions: list[Question] = []
        self._left_open: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def asked(self, verb: str) -> list[Question]:
        """Return the questions of that verb."""
        return [question for question in self.questions if question["verb"] == verb]

    def close(self) -> None:
        """Stop listening and remove the socket."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        for connection in self._left_open:
            connection.close()
        shutil.rmtree(self.directory)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection.makefile("rb") as lines:
                question = json.loads(lines.readline())
            self.questions.append(question)
            answer = self.answer(question)
            if answer is None:
                self._left_open.append(connection)
                continue
            text = answer if isinstance(answer, str) else json.dumps(answer) + "\n"
            with suppress(ConnectionError):  # the other side may have had enough
                connection.sendall(text.encode("utf-8", "surrogateescape"))
            connection.close()
