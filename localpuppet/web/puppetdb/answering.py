"""Answers questions: evaluates queries in threads, and writes the answer before it is sent.

- An answer is complete before its first byte leaves. So an error has its status code, and a client
  never takes a part of an answer for the whole.
- A large answer is a file without a name, so memory stays small while a slow client reads.
- Each query has a deadline, which includes the wait for its turn.
"""

import asyncio
import json
import tempfile
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.strict_json import loads_again
from localpuppet.fleet.inventory.query.answering import answer
from localpuppet.fleet.inventory.query.budget import QueryDeadlineError, QueryLimits
from localpuppet.fleet.inventory.query.records import RecordSource
from localpuppet.fleet.inventory.reading import InventoryReader
from localpuppet.web.dashboard.inventory_questions import InventoryQuestioner
from localpuppet.web.puppetdb.errors import AbsentError
from localpuppet.web.puppetdb.questions import Question
from localpuppet.web.puppetdb.turns import Turns


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLimits:
    """Limits of an answer.

    Attributes:
        seconds: Seconds for an answer, the wait for a turn included.
        size: Bytes of JSON.
        memory: Bytes above which an answer is in a file.
        plain: Bytes up to which an answer is not compressed.
    """

    seconds: float = 60.0
    size: int = 256 * 1024 * 1024
    memory: int = 512 * 1024
    plain: int = 2048


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenAnswer:
    """An answer that is ready to be sent.

    Attributes:
        body: The body, at its beginning.
        size: Bytes of the body.
        compressed: Whether it is compressed with gzip.
        total: The number of rows without limit and offset; `None` if it was not requested.
        age: Seconds since the view was last current.
    """

    body: IO[bytes]
    size: int
    compressed: bool
    total: int | None = None
    age: float = 0.0


@dataclass(slots=True, eq=False)
class RequestDeadline:
    """The end of the time for a query.

    Attributes:
        monotonic: Returns the time, in seconds.
        seconds: The time for the query.
        cancelled: Whether the client has left.
    """

    monotonic: Callable[[], float]
    seconds: float
    cancelled: bool = False
    _end: float = field(init=False)

    def __post_init__(self) -> None:
        self._end = self.monotonic() + self.seconds

    @property
    def left(self) -> float:
        """Return the seconds that are left."""
        return max(0.0, self._end - self.monotonic())

    def check(self) -> None:
        """Raise an error if the query must end.

        Raises:
            QueryDeadlineError: The time is over, or the client has left.
        """
        if self.cancelled or self.monotonic() > self._end:
            raise self.error()

    def error(self) -> QueryDeadlineError:
        """Return the error of a query that took too long."""
        return QueryDeadlineError(
            f"Query exceeded timeout: {self.seconds:g} s", hint="select fewer nodes or columns"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Answering:
    """Answers questions about the fleet.

    Attributes:
        reader: The entries of nodes.
        records: Reports, events and catalogs; `None` if there are none.
        ask: Queries the entries, or raises an error if they are too old.
        directory: The directory of large answers while they are sent; it must exist.
        monotonic: The monotonic clock, seconds.
        turns: The turns of clients.
        threads: Evaluate queries.
        limits: The limits.
    """

    reader: InventoryReader
    records: RecordSource | None
    ask: InventoryQuestioner
    directory: Path
    monotonic: Callable[[], float]
    turns: Turns = field(default_factory=Turns)
    threads: ThreadPoolExecutor = field(default_factory=ThreadPoolExecutor)
    limits: AnswerLimits = AnswerLimits()

    def deadline(self, seconds: float | None) -> RequestDeadline:
        """Return the deadline of a query that begins now.

        Args:
            seconds: The time that the client allows; `None` for the limit.
        """
        most = self.limits.seconds
        return RequestDeadline(self.monotonic, most if seconds is None else min(seconds, most))

    async def answer(
        self, question: Question, client: str, deadline: RequestDeadline, form: "BodyForm"
    ) -> WrittenAnswer:
        """Return the answer to a question.

        Args:
            question: The question.
            client: The client.
            deadline: The deadline.
            form: The form of the body.

        Raises:
            AbsentError: What the path names does not exist.
            BusyError: Too many queries wait.
            QueryDeadlineError: The query did not end in time.
            InvalidInputError: The query is invalid, or exceeds a limit.
            UnavailableError: The view is too old, or cannot be read.
        """
        async with AsyncExitStack() as held:
            try:
                async with asyncio.timeout(deadline.left):
                    await held.enter_async_context(self.turns.turn(client))
            except TimeoutError as error:
                raise deadline.error() from error
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self.threads, self._answer, question, deadline, form)

    def _answer(
        self, question: Question, deadline: RequestDeadline, form: "BodyForm"
    ) -> WrittenAnswer:
        writer = BodyWriter(form, self.limits, self.directory)
        try:
            total, age = self._write(question, deadline, writer)
            return replace(writer.end(), total=total, age=age)
        except BaseException:
            writer.close()
            raise

    def _write(
        self, question: Question, deadline: RequestDeadline, writer: "BodyWriter"
    ) -> tuple[int | None, float]:
        age = self.ask(self.reader, lambda _: None).age
        limits = QueryLimits(check=deadline.check)
        evaluate = partial(answer, reader=self.reader, records=self.records, limits=limits)
        for parent, message in question.parents:
            if not list(evaluate(parent).rows):
                raise AbsentError(message)
        found = evaluate(question.select, total=question.total)
        if question.absent:
            only = next(found.rows, None)
            if only is None:
                raise AbsentError(question.absent)
            writer.single(only)
        else:
            rows = found.rows if question.shape is None else question.shape(found.rows)
            for text in rows:
                deadline.check()
                writer.row(text)
        return found.total, age


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyForm:
    """The form of a body.

    Attributes:
        pretty: Whether the JSON is indented.
        gzip: Whether the client accepts gzip.
    """

    pretty: bool = False
    gzip: bool = False


class BodyWriter:
    """Writes an answer as JSON.

    Args:
        form: The form of the body.
        limits: The limits.
        directory: The directory of a large answer.
    """

    def __init__(self, form: BodyForm, limits: AnswerLimits, directory: Path) -> None:
        self._form = form
        self._limits = limits
        # Closed by who sends it, and removed by the system: it has no name.
        self._body: IO[bytes] = tempfile.SpooledTemporaryFile(  # noqa: SIM115
            max_size=limits.memory, dir=str(directory)
        )
        self._early: list[bytes] = []
        self._packer: zlib._Compress | None = None
        self._size = 0
        self._rows = 0

    def row(self, text: str) -> None:
        """Write a row of an array.

        Raises:
            InvalidInputError: The answer is too large.
        """
        self._take(("," if self._rows else "[") + self._shown(text))
        self._rows += 1

    def single(self, text: str) -> None:
        """Write the only row, without an array."""
        self._take(self._shown(text))
        self._rows = -1

    def end(self) -> WrittenAnswer:
        """Return the answer."""
        if self._rows >= 0:
            self._take("]" if self._rows else "[]")
        for part in self._early:
            self._body.write(part)
        if self._packer is not None:
            self._body.write(self._packer.flush())
        size = self._body.tell()
        self._body.seek(0)
        return WrittenAnswer(body=self._body, size=size, compressed=self._packer is not None)

    def close(self) -> None:
        """Drop the answer."""
        self._body.close()

    def _shown(self, text: str) -> str:
        return json.dumps(loads_again(text.encode()), indent=2) if self._form.pretty else text

    def _take(self, text: str) -> None:
        data = text.encode()
        self._size += len(data)
        if self._size > self._limits.size:
            raise InvalidInputError(
                f"the answer has more than {self._limits.size // 2**20} MiB",
                hint="select fewer nodes or columns, or use limit and offset",
            )
        if self._packer is not None:
            self._body.write(self._packer.compress(data))
        elif not self._form.gzip:
            self._body.write(data)
        else:
            self._early.append(data)
            if self._size > self._limits.plain:
                self._packer = zlib.compressobj(1, wbits=31)
                self._body.write(self._packer.compress(b"".join(self._early)))
                self._early = []
