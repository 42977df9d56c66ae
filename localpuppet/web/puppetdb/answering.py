"""Answers questions: evaluates queries in threads, and writes the answer before it is sent.

- An answer is complete before its first byte leaves. So an error has its status code, and a client
  never takes a part of an answer for the whole.
- Each query has a deadline, which includes the wait for its turn.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial

from localpuppet.fleet.inventory.query.answering import answer
from localpuppet.fleet.inventory.query.budget import QueryDeadlineError, QueryLimits
from localpuppet.fleet.inventory.query.records import RecordSource
from localpuppet.fleet.inventory.reading import InventoryReader
from localpuppet.web.dashboard.inventory_questions import InventoryQuestioner
from localpuppet.web.puppetdb.bodies import AnswerBodies, BodyForm, BodyWriter, WrittenAnswer
from localpuppet.web.puppetdb.errors import AbsentError
from localpuppet.web.puppetdb.questions import Question
from localpuppet.web.puppetdb.turns import Turns


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
        monotonic: The monotonic clock, seconds.
        bodies: Holds answers while they are sent.
        turns: The turns of clients.
        threads: Evaluate queries.
        seconds: The limit for an answer, the wait for a turn included.
    """

    reader: InventoryReader
    records: RecordSource | None
    ask: InventoryQuestioner
    monotonic: Callable[[], float]
    bodies: AnswerBodies
    turns: Turns = field(default_factory=Turns)
    threads: ThreadPoolExecutor = field(default_factory=ThreadPoolExecutor)
    seconds: float = 60.0
    _active: set[RequestDeadline] = field(default_factory=set, init=False)

    def deadline(self, seconds: float | None) -> RequestDeadline:
        """Return the deadline of a query that begins now.

        Args:
            seconds: The time that the client allows; `None` for the limit.
        """
        most = self.seconds
        return RequestDeadline(self.monotonic, most if seconds is None else min(seconds, most))

    async def answer(
        self,
        question: Callable[[], Question],
        client: str,
        deadline: RequestDeadline,
        form: BodyForm,
    ) -> WrittenAnswer:
        """Return the answer to a question.

        Args:
            question: Parses the question; a large one takes some time.
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
            self._active.add(deadline)
            held.callback(self._active.discard, deadline)
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self.threads, self._answer, question, deadline, form)

    def close(self) -> None:
        """End all queries."""
        for deadline in self._active:
            deadline.cancelled = True
        self.threads.shutdown(wait=False, cancel_futures=True)

    def _answer(
        self, question: Callable[[], Question], deadline: RequestDeadline, form: BodyForm
    ) -> WrittenAnswer:
        deadline.check()
        writer = self.bodies.writer(form)
        try:
            total, age = self._write(question(), deadline, writer)
            return replace(writer.end(), total=total, age=age)
        except BaseException:
            writer.close()
            raise

    def _write(
        self, question: Question, deadline: RequestDeadline, writer: BodyWriter
    ) -> tuple[int | None, float]:
        age = self.ask(self.reader, lambda _: None).age
        limits = QueryLimits(check=deadline.check)
        evaluate = partial(answer, reader=self.reader, records=self.records, limits=limits)
        for parent, message in question.parents:
            if not list(evaluate(parent).rows):
                raise AbsentError(message)
        result = evaluate(question.select, total=question.total)
        if question.absent:
            only = next(result.rows, None)
            if only is None:
                raise AbsentError(question.absent)
            writer.single(only)
        else:
            rows = result.rows if question.shape is None else question.shape(result.rows)
            for text in rows:
                deadline.check()
                writer.row(text)
        return result.total, age
