"""The process that compiles, and the messages between it and the engine.

It reads requests as lines of JSON from a socket, its standard input, and answers each, in any
order: `{"id": 1, "bytes": 5120}` and then that number of bytes of JSON, or
`{"id": 1, "failed": REASON}`. What it prints is not read, except for an error at its start.
"""

import json
import os
import select
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.formats.strict_json import loads
from localpuppet.base.machine.isolation import start_session

# Seconds until it is ready, and without an answer while it has requests.
START = 180
SILENCE = 300
MAX_LINE = 64 * 1024
MAX_ANSWER = 64 * 1024**2
# Counted before an answer is parsed: a value of three bytes may take a hundred of memory.
MAX_VALUES = 1_000_000
_CHUNK = 256 * 1024
_ERRORS = 4000


class CompilerDeathError(Exception):
    """The process has ended, or does not answer."""


class CompilerProcess:
    """A running process; see `start`."""

    def __init__(
        self, channel: socket.socket, process: "subprocess.Popen[bytes]", stack: ExitStack
    ) -> None:
        self._channel = channel
        self._process = process
        self._stack = stack
        self._received = bytearray()
        self.puppet = ""

    @property
    def pid(self) -> int:
        """Return the number of the process that was started."""
        return self._process.pid

    @classmethod
    def start(
        cls,
        isolated: AbstractContextManager[Sequence[str]],
        *,
        env: Mapping[str, str],
        setup: Mapping[str, Any],
    ) -> "CompilerProcess":
        """Start the process, and wait until it has loaded Puppet.

        Args:
            isolated: Yields the command.
            env: Its whole environment.
            setup: What `main.rb` reads first.

        Raises:
            StateError: It cannot be started.
        """
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with ExitStack() as stack:
            stack.callback(ours.close)
            argv = stack.enter_context(isolated)
            errors = os.memfd_create("errors", os.MFD_CLOEXEC)
            stack.callback(os.close, errors)
            try:
                process = stack.enter_context(
                    start_session(
                        argv,
                        env=env,
                        cwd=Path("/"),
                        stdin=theirs.fileno(),
                        out=subprocess.DEVNULL,
                        err=errors,
                    )
                )
            finally:
                theirs.close()
            compiler = cls(ours, process, stack.pop_all())
        try:
            compiler.send(setup)
            ready = compiler._parse(compiler._line(time.monotonic() + START))
            compiler.puppet = str(ready.get("ready", ""))[:100]
        except CompilerDeathError as error:
            text = os.pread(errors, _ERRORS, 0).decode("utf-8", "replace").strip()
            compiler.close()
            reason = text.splitlines()[0] if text else str(error)
            raise StateError(
                f"Puppet's compiler did not start: {reason}",
                hint="isolated, it sees the file of 'puppet.command', Ruby and its libraries only",
            ) from error
        return compiler

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message.

        Raises:
            CompilerDeathError: The process has ended.
        """
        data = memoryview(json.dumps(message).encode() + b"\n")
        deadline = time.monotonic() + SILENCE
        while data:
            readable, writable = self._wait(deadline, writing=True)
            if readable:
                self._read()
            if writable:
                try:
                    data = data[self._channel.send(data) :]
                except BlockingIOError:
                    continue
                except OSError as error:
                    raise CompilerDeathError("it has ended") from error

    def receive(self) -> tuple[int, dict[str, Any], int]:
        """Return the number of a request, the answer to it, and the bytes of the answer.

        Raises:
            CompilerDeathError: The process has ended, does not answer, or breaks the protocol.
        """
        deadline = time.monotonic() + SILENCE
        head = self._parse(self._line(deadline))
        number, length = head.get("id"), head.get("bytes", 0)
        if type(number) is not int or type(length) is not int or not 0 <= length <= MAX_ANSWER:
            raise CompilerDeathError("it sent an unexpected message")
        if "failed" in head:
            return number, head, 0
        while len(self._received) < length:
            self._wait(deadline, writing=False)
            self._read()
        body = bytes(self._received[:length])
        del self._received[:length]
        try:  # a release can write its own result
            return number, self._parse(body), length
        except CompilerDeathError as error:
            return number, {"failed": f"the compile's result cannot be read: {error}"}, 0

    def close(self) -> None:
        """End the process with everything that it started, and wait for its end."""
        self._stack.close()

    def _parse(self, data: bytes) -> dict[str, Any]:
        try:
            value = loads(data, values=MAX_VALUES)
        except (ValueError, InvalidInputError) as error:
            raise CompilerDeathError(f"it is not the expected JSON: {error}"[:_ERRORS]) from error
        if not isinstance(value, dict):
            raise CompilerDeathError("it sent an unexpected message")
        return value

    def _line(self, deadline: float) -> bytes:
        while (end := self._received.find(b"\n")) < 0:
            if len(self._received) > MAX_LINE:
                raise CompilerDeathError("it sent an unexpected message")
            self._wait(deadline, writing=False)
            self._read()
        line = bytes(self._received[:end])
        del self._received[: end + 1]
        return line

    def _wait(self, deadline: float, *, writing: bool) -> tuple[bool, bool]:
        left = deadline - time.monotonic()
        outputs = [self._channel] if writing else []
        ready = select.select([self._channel], outputs, [], max(left, 0))
        if not ready[0] and not ready[1]:
            raise CompilerDeathError("it did not answer in time")
        return bool(ready[0]), bool(ready[1])

    def _read(self) -> None:
        try:
            data = self._channel.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError as error:
            raise CompilerDeathError("it has ended") from error
        if not data:
            raise CompilerDeathError("it has ended")
        self._received += data
