"""Answers questions in threads, in the turns of clients: fairness, deadlines, equal questions once.

- A client with many requests delays its own ones: the next turn belongs to the next client.
- A request joins only an evaluation that has not begun. So an answer is never older than its
  request, and nothing is kept after it is sent.
- Requests of different clients never share an answer.
- One request that ends, by its deadline or because its client leaves, does not end the others.
- An answer is complete before its first byte leaves. So an error has its status code, and a client
  never takes a part of an answer for the whole.
- Each query has a deadline, which includes the wait for its turn.
"""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from localpuppet.base.errors import BusyError
from localpuppet.base.machine.waiting import retrieve_error
from localpuppet.base.value import Value
from localpuppet.fleet.inventory.query.evaluating import Evaluation, QueryDeadlineError, QueryLimits
from localpuppet.fleet.inventory.query.records import RecordSource
from localpuppet.fleet.inventory.reading import InventoryReader
from localpuppet.web.puppetdb import answers
from localpuppet.web.puppetdb.api_requests import Question

if TYPE_CHECKING:
    from localpuppet.web.dashboard.inventory_questions import InventoryQuestioner


class TurnLimits(Value):
    running: int = 4
    running_of_one: int = 2
    waiting: int = 400
    waiting_of_one: int = 200


class Turns:
    """Decides which query runs next."""

    def __init__(self, limits: TurnLimits = TurnLimits()) -> None:
        self._limits = limits
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        # The number of the last turn of each client that has a query.
        self._last: dict[str, int] = {}
        self._turns = 0

    @asynccontextmanager
    async def turn(self, client: str) -> AsyncGenerator[None, None]:
        """Wait for a turn of a client, and hold it."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._enter(client, ready)
        try:
            self._next()
            await ready
            yield
        finally:
            if ready.done() and not ready.cancelled():
                self._running[client] -= 1
            else:
                self._leave(client, ready)
            self._forget(client)
            self._next()

    def _enter(self, client: str, ready: "asyncio.Future[None]") -> None:
        limits, own = self._limits, self._waiting.get(client, ())
        total = sum(map(len, self._waiting.values()))
        if len(own) >= limits.waiting_of_one or total >= limits.waiting:
            raise BusyError(
                f"{total} queries are waiting already, {len(own)} of them yours",
                hint="send fewer queries at once",
            )
        self._waiting.setdefault(client, deque()).append(ready)

    def _leave(self, client: str, ready: "asyncio.Future[None]") -> None:
        own = self._waiting.get(client)
        if own is not None and ready in own:
            own.remove(ready)
        if not own:
            self._waiting.pop(client, None)

    def _forget(self, client: str) -> None:
        if not self._running[client]:
            del self._running[client]
            if client not in self._waiting:
                self._last.pop(client, None)

    def _next(self) -> None:
        """Give free turns to the clients with the fewest, and whose last turn is the oldest."""
        limits = self._limits
        while self._running.total() < limits.running:
            free = [name for name in self._waiting if self._running[name] < limits.running_of_one]
            if not free:
                return
            client = min(free, key=lambda item: (self._running[item], self._last.get(item, 0)))
            ready = self._waiting[client].popleft()
            self._leave(client, ready)
            if not ready.cancelled():
                self._turns += 1
                self._last[client] = self._turns
                self._running[client] += 1
                ready.set_result(None)


@dataclass(slots=True, eq=False)
class RequestDeadline:
    """The end of the time for a query, cancelled if the client has left."""

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

    @property
    def is_over(self) -> bool:
        """Whether the time is over, or the client has left."""
        return self.cancelled or self.monotonic() > self._end

    def error(self) -> QueryDeadlineError:
        """Return the error of a query that took too long."""
        return QueryDeadlineError(
            f"Query exceeded timeout: {self.seconds:g} s", hint="select fewer nodes or columns"
        )


@dataclass(slots=True, eq=False)
class SharedDeadline:
    """The end of the time for an answer: when the time of all its requests is over."""

    requests: tuple[RequestDeadline, ...] = ()
    cancelled: bool = False

    def check(self) -> None:
        """Raise an error if no request waits any longer."""
        if not self.cancelled:
            for request in self.requests:
                if not request.is_over:
                    return
        raise QueryDeadlineError("no request waits for the answer any longer")


class AnswerKey(Value):
    """What an answer depends on, besides the fleet."""

    client: str
    question: bytes
    form: answers.BodyForm


class AnswerSharing:
    """The evaluations that wait for a turn, and the requests that wait for each of them."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._waiting: dict[
            AnswerKey, tuple[SharedDeadline, asyncio.Task[answers.WrittenAnswer]]
        ] = {}

    async def get(
        self,
        key: AnswerKey,
        deadline: RequestDeadline,
        evaluate: Callable[[SharedDeadline], Awaitable[answers.WrittenAnswer]],
    ) -> answers.WrittenAnswer:
        """Return an answer, whose body the caller closes."""
        if key not in self._waiting:
            shared = SharedDeadline()
            task = asyncio.create_task(self._evaluate(key, shared, evaluate))
            task.add_done_callback(retrieve_error)
            self._waiting[key] = shared, task
        shared, task = self._waiting[key]
        shared.requests += (deadline,)
        try:
            await asyncio.wait([task], timeout=deadline.left)
            if task.done() and not isinstance(task.exception(), QueryDeadlineError):
                return task.result()
        finally:
            shared.requests = tuple(item for item in shared.requests if item is not deadline)
            if not shared.requests and self._ends_waiting(key, shared):
                task.cancel()
            # An error refers to this frame: it must not keep itself, and the rows of the query.
            del task
        raise deadline.error()

    async def _evaluate(
        self,
        key: AnswerKey,
        shared: SharedDeadline,
        evaluate: Callable[[SharedDeadline], Awaitable[answers.WrittenAnswer]],
    ) -> answers.WrittenAnswer:
        try:
            async with self._turns.turn(key.client):
                self._ends_waiting(key, shared)
                answer = await evaluate(shared)
        finally:
            self._ends_waiting(key, shared)
        answer.body.share(len(shared.requests))
        return answer

    def _ends_waiting(self, key: AnswerKey, shared: SharedDeadline) -> bool:
        """Let no further request join an evaluation; return whether one could join until now."""
        if key not in self._waiting or self._waiting[key][0] is not shared:
            return False
        del self._waiting[key]
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Answering:
    """Answers questions about the fleet.

    `ask` raises an error if the entries are too old. `seconds` includes the wait for a turn.
    """

    reader: InventoryReader
    records: RecordSource | None
    ask: "InventoryQuestioner"
    monotonic: Callable[[], float]
    bodies: answers.AnswerBodies
    turns: Turns = field(default_factory=Turns)
    threads: ThreadPoolExecutor = field(default_factory=ThreadPoolExecutor)
    seconds: float = 60.0
    _shared: AnswerSharing = field(init=False)
    _active: set[SharedDeadline] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_shared", AnswerSharing(self.turns))

    def deadline(self, seconds: float | None) -> RequestDeadline:
        """Return the deadline of a query that begins now, as the client and the limit allow."""
        most = self.seconds
        return RequestDeadline(self.monotonic, most if seconds is None else min(seconds, most))

    async def answer(
        self, question: Callable[[], Question], key: AnswerKey, deadline: RequestDeadline
    ) -> answers.WrittenAnswer:
        """Return the answer to a question; an equal question that waits is evaluated once.

        Args:
            question: Parses the question; a large one takes some time.

        Raises:
            AbsentError: What the path names does not exist.
            BusyError: Too many queries wait.
            QueryDeadlineError: The query did not end in time.
            UnavailableError: The view is too old, or cannot be read.
        """

        async def evaluate(shared: SharedDeadline) -> answers.WrittenAnswer:
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
        self, question: Callable[[], Question], deadline: SharedDeadline, form: answers.BodyForm
    ) -> answers.WrittenAnswer:
        deadline.check()
        writer = self.bodies.writer(form)
        try:
            total, age = self._write(question(), deadline, writer)
            return replace(writer.end(), total=total, age=age)
        except BaseException:
            writer.close()
            raise

    def _write(
        self, question: Question, deadline: SharedDeadline, writer: answers.BodyWriter
    ) -> tuple[int | None, float]:
        age = self.ask(self.reader, lambda _: None).age
        evaluation = Evaluation(self.reader, self.records, QueryLimits(check=deadline.check))
        for parent, message in question.parents:
            if not list(evaluation.stream(parent).rows):
                raise answers.AbsentError(message)
        result = evaluation.stream(question.select, total=question.total)
        with closing(result.rows):  # in this thread, as SQLite requires
            if question.absent:
                only = next(result.rows, None)
                if only is None:
                    raise answers.AbsentError(question.absent)
                writer.single(only)
            else:
                rows = result.rows if question.shape is None else question.shape(result.rows)
                writer.array(rows, deadline.check)
        return result.total, age
