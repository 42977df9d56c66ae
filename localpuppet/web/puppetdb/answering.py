"""Answers questions: evaluates queries in threads, and writes the answer before it is sent.

- An answer is complete before its first byte leaves. So an error has its status code, and a client
  never takes a part of an answer for the whole.
- Each query has a deadline, which includes the wait for its turn.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from localpuppet.fleet.inventory.query.evaluating import Evaluation, QueryLimits
from localpuppet.fleet.inventory.query.records import RecordSource
from localpuppet.fleet.inventory.reading import InventoryReader
from localpuppet.web.puppetdb.api_errors import AbsentError
from localpuppet.web.puppetdb.bodies import AnswerBodies, BodyForm, BodyWriter, WrittenAnswer
from localpuppet.web.puppetdb.questions import Question
from localpuppet.web.puppetdb.turns import (
    AnswerKey,
    AnswerSharing,
    RequestDeadline,
    SharedDeadline,
    Turns,
)

if TYPE_CHECKING:
    from localpuppet.web.dashboard.inventory_questions import InventoryQuestioner


@dataclass(frozen=True, slots=True, kw_only=True)
class Answering:
    """Answers questions about the fleet.

    Attributes:
        records: Reports, events and catalogs; `None` if there are none.
        ask: Queries the entries, or raises an error if they are too old.
        monotonic: The monotonic clock, seconds.
        bodies: Holds answers while they are sent.
        seconds: The limit for an answer, the wait for a turn included.
    """

    reader: InventoryReader
    records: RecordSource | None
    ask: "InventoryQuestioner"
    monotonic: Callable[[], float]
    bodies: AnswerBodies
    turns: Turns = field(default_factory=Turns)
    threads: ThreadPoolExecutor = field(default_factory=ThreadPoolExecutor)
    seconds: float = 60.0
    _shared: AnswerSharing = field(init=False)
    _active: set[SharedDeadline] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_shared", AnswerSharing(self.turns))

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
        key: AnswerKey,
        deadline: RequestDeadline,
    ) -> WrittenAnswer:
        """Return the answer to a question.

        Args:
            question: Parses the question; a large one takes some time.
            key: What the answer depends on: an equal question that waits is evaluated once.

        Raises:
            AbsentError: What the path names does not exist.
            BusyError: Too many queries wait.
            QueryDeadlineError: The query did not end in time.
            InvalidInputError: The query is invalid, or exceeds a limit.
            UnavailableError: The view is too old, or cannot be read.
        """

        async def evaluate(shared: SharedDeadline) -> WrittenAnswer:
            self._active.add(shared)
            try:
                loop = asyncio.get_running_loop()
                answer = partial(self._answer, question, shared, key.form)
                return await loop.run_in_executor(self.threads, answer)
            finally:
                self._active.discard(shared)

        return await self._shared.get(key, deadline, evaluate)

    def close(self) -> None:
        """End all queries."""
        for deadline in self._active:
            deadline.cancelled = True
        self.threads.shutdown(wait=False, cancel_futures=True)

    def _answer(
        self, question: Callable[[], Question], deadline: SharedDeadline, form: BodyForm
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
        self, question: Question, deadline: SharedDeadline, writer: BodyWriter
    ) -> tuple[int | None, float]:
        age = self.ask(self.reader, lambda _: None).age
        evaluation = Evaluation(self.reader, self.records, QueryLimits(check=deadline.check))
        for parent, message in question.parents:
            if not list(evaluation.stream(parent).rows):
                raise AbsentError(message)
        result = evaluation.stream(question.select, total=question.total)
        with closing(result.rows):  # in this thread, as SQLite requires
            if question.absent:
                only = next(result.rows, None)
                if only is None:
                    raise AbsentError(question.absent)
                writer.single(only)
            else:
                rows = result.rows if question.shape is None else question.shape(result.rows)
                writer.array(rows, deadline.check)
        return result.total, age
