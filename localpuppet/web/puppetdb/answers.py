"""Answers of the API: JSON, compressed if the client accepts it, of limited size; and errors.

- A large body is a file, so that memory stays small while a slow client reads it.
"""

import json
import tempfile
import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from threading import Lock

from starlette.responses import Response

from localpuppet.base.errors import (
    BusyError,
    InvalidInputError,
    LocalpuppetError,
    StateError,
    UnavailableError,
)
from localpuppet.base.formats.strict_json import loads_again
from localpuppet.base.value import Value
from localpuppet.fleet.inventory.query.evaluating import QueryDeadlineError

_TEXT = "text/plain; charset=utf-8"


class AbsentError(LocalpuppetError):
    """A node, an environment or another named thing does not exist."""


_CODES: tuple[tuple[type[LocalpuppetError], int], ...] = (
    (AbsentError, 404),
    (InvalidInputError, 400),
    (QueryDeadlineError, 500),
    (BusyError, 503),
    (UnavailableError, 503),
    (StateError, 503),
)


def refused(code: int, text: str) -> Response:
    """Return an error with a text, as PuppetDB does."""
    return Response(text, code, {"content-type": _TEXT})


def response_of(error: LocalpuppetError) -> Response:
    """Return the response to an error.

    An error of this machine shows no path: clients do not learn details about its files.
    """
    code = next((code for kind, code in _CODES if isinstance(error, kind)), 500)
    if code == 404:
        return json_response({"error": error.what}, code)
    if isinstance(error, StateError):
        return refused(code, f"{error.what} ('localpuppet check' names the file)")
    return refused(code, str(error))


def json_response(value: object, code: int = 200) -> Response:
    return Response(
        json.dumps(value, indent=2), code, {"content-type": "application/json; charset=utf-8"}
    )


# Characters that are encoded and compressed together.
TOGETHER = 64 * 1024
# Rows that are written together.
AT_ONCE = 32


class AnswerLimits(Value):
    size: int = 256 * 1024 * 1024
    total: int = 1024 * 1024 * 1024  # bytes of all answers that are sent at the same time, as sent
    memory: int = 64 * 1024  # bytes above which an answer is in a file
    plain: int = 2048  # bytes up to which an answer is not compressed


class WrittenAnswer(Value):
    """An answer that is ready to be sent; `total` are its rows without limit and offset."""

    body: "AnswerBody"
    compressed: bool
    total: int | None = None
    age: float = 0.0


class BodyForm(Value):
    pretty: bool = False
    gzip: bool = False


class AnswerBodies:
    """The bodies of all answers that are being written or sent; the directory must exist."""

    def __init__(self, directory: Path, limits: AnswerLimits = AnswerLimits()) -> None:
        self._directory = str(directory)
        self._limits = limits
        self.used = 0
        self._lock = Lock()

    def writer(self, form: BodyForm) -> "BodyWriter":
        return BodyWriter(form, self._limits, AnswerBody(self, self._directory, self._limits))

    def take(self, size: int) -> None:
        """Count bytes of an answer within the limit of all; a negative number releases them."""
        with self._lock:
            if size > 0 and self.used + size > self._limits.total:
                raise BusyError(
                    "the answers that clients are reading are too large together",
                    hint="try again later, or use limit and offset",
                )
            self.used += size


class AnswerBody:
    """The bytes of an answer: in memory, or in a file without a name if there are many."""

    def __init__(self, bodies: AnswerBodies, directory: str, limits: AnswerLimits) -> None:
        self._bodies = bodies
        self._size = 0
        self._requests = 1
        self._lock = Lock()
        self._memory = limits.memory
        # The system removes it after the process: it has no name.
        self._file = tempfile.SpooledTemporaryFile(  # noqa: SIM115
            max_size=limits.memory, dir=directory
        )

    def write(self, data: bytes) -> None:
        self._bodies.take(len(data))
        self._size += len(data)
        try:
            self._file.write(data)
        except OSError as error:
            raise StateError(f"cannot write the answer: {error.strerror}") from error

    @property
    def is_file(self) -> bool:
        """Whether reading may wait for the disk."""
        return self._size > self._memory

    @property
    def size(self) -> int:
        """Return the number of bytes."""
        return self._size

    def read(self, start: int, size: int) -> bytes:
        """Return bytes from a position; none behind the end."""
        with self._lock:  # several requests read in threads
            self._file.seek(start)
            return self._file.read(size)

    def share(self, requests: int) -> None:
        """Let a number of requests read the bytes; without any, drop them."""
        self._requests = requests + 1
        self.close()

    def close(self) -> None:
        """End the reading of a request; after the last one, drop the bytes."""
        self._requests -= 1
        if self._requests > 0:
            return
        self._file.close()
        self._bodies.take(-self._size)
        self._size = 0


class BodyWriter:
    """Writes an answer as JSON."""

    def __init__(self, form: BodyForm, limits: AnswerLimits, body: AnswerBody) -> None:
        self._form = form
        self._limits = limits
        self._body = body
        self._parts: list[str] = []
        self._waiting = 0
        self._packer: zlib._Compress | None = None
        self._size = 0

    def array(self, rows: Iterator[str], check: Callable[[], None]) -> None:
        """Write rows as an array; `check` is called often."""
        begin, shown = "[", map(self._shown, rows) if self._form.pretty else rows
        while some := [*islice(shown, AT_ONCE)]:
            check()
            self.write(begin + ",".join(some))
            begin = ","
        self.write("[]" if begin == "[" else "]")

    def single(self, text: str) -> None:
        """Write the only row, without an array."""
        self.write(self._shown(text))

    def end(self) -> WrittenAnswer:
        self._flush()
        if self._packer is not None:
            self._body.write(self._packer.flush())
        return WrittenAnswer(body=self._body, compressed=self._packer is not None)

    def close(self) -> None:
        """Drop the answer."""
        self._body.close()

    def _shown(self, text: str) -> str:
        return json.dumps(loads_again(text.encode()), indent=2) if self._form.pretty else text

    def write(self, text: str) -> None:
        """Write a part of the answer."""
        self._parts.append(text)
        self._waiting += len(text)
        if self._waiting > TOGETHER:
            self._flush()

    def _flush(self) -> None:
        data = "".join(self._parts).encode()
        self._parts, self._waiting = [], 0
        self._size += len(data)
        if self._size > self._limits.size:
            raise InvalidInputError(
                f"the answer has more than {self._limits.size // 2**20} MiB",
                hint="select fewer nodes or columns, or use limit and offset",
            )
        if self._packer is None and self._form.gzip and self._size > self._limits.plain:
            self._packer = zlib.compressobj(1, wbits=31)
        self._body.write(data if self._packer is None else self._packer.compress(data))
