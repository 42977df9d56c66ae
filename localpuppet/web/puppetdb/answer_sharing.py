"""Share answers: equal questions of a client that wait for a turn are evaluated once.

- A request joins only an evaluation that has not begun. So an answer is never older than its
  request, and nothing is kept after it is sent.
- Requests of different clients never share an answer.
- One request that ends, by its deadline or because its client leaves, does not end the others.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from localpuppet.base.machine.waiting import retrieve_error
from localpuppet.fleet.inventory.query.evaluating import QueryDeadlineError
from localpuppet.web.puppetdb.bodies import BodyForm, WrittenAnswer
from localpuppet.web.puppetdb.deadlines import RequestDeadline, SharedDeadline
from localpuppet.web.puppetdb.turns import Turns


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerKey:
    """What an answer depends on, besides the fleet.

    Attributes:
        client: The client.
        question: A digest of the path and the parameters.
        form: The form of the body.
    """

    client: str
    question: bytes
    form: BodyForm


class AnswerSharing:
    """The evaluations that wait for a turn, and the requests that wait for each of them.

    Args:
        turns: The turns of clients.
    """

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._waiting: dict[AnswerKey, tuple[SharedDeadline, asyncio.Task[WrittenAnswer]]] = {}

    async def get(
        self,
        key: AnswerKey,
        deadline: RequestDeadline,
        evaluate: Callable[[SharedDeadline], Awaitable[WrittenAnswer]],
    ) -> WrittenAnswer:
        """Return an answer, whose body the caller closes.

        Args:
            key: What the answer depends on.
            deadline: The deadline of the request.
            evaluate: Returns the answer.

        Raises:
            BusyError: Too many queries wait.
            QueryDeadlineError: The query did not end in time.
        """
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
        evaluate: Callable[[SharedDeadline], Awaitable[WrittenAnswer]],
    ) -> WrittenAnswer:
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
