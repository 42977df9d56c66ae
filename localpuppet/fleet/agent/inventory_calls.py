"""Answer the verb `query` of Puppet code about other nodes, and record the answers.

- The answer is recorded before it is sent.
- An empty answer is an answer. If the agent cannot ask, the compilation fails.
"""

import asyncio
from dataclasses import replace
from itertools import islice
from typing import Any

from localpuppet.base.errors import StateError, UnavailableError
from localpuppet.base.formats.fields import Fields
from localpuppet.base.formats.json_text import JsonText
from localpuppet.base.formats.names import RunId
from localpuppet.base.formats.text import one_line, shown_names
from localpuppet.base.formats.times import show_duration, show_time
from localpuppet.base.machine.ports import Clock
from localpuppet.fleet.agent.request_service import HINT, Lend, RequestService
from localpuppet.fleet.inventory.query.functions import FunctionCall, FunctionReply
from localpuppet.fleet.inventory.reading import InventoryAnswer, UnansweredQuery
from localpuppet.node.runs.query_record import RecordedQuery, note_query, read_queries
from localpuppet.node.runs.records import Records, RunDirectory

# The number of runs that are searched for the last answer to a query.
LOOKED_BACK = 50


class InventoryCalls:
    """Answers queries about nodes.

    Args:
        lend: Lends the entries.
        max_stale: Seconds for which an answer is valid after the last update of the view.
        records: The records of runs.
        clock: The clock.
    """

    def __init__(self, lend: Lend, *, max_stale: float, records: Records, clock: Clock) -> None:
        self._asking = RequestService(lend, max_stale=max_stale, clock=clock)
        self._records = records
        self._clock = clock

    async def answer(self, fields: Fields, run: str | None) -> dict[str, Any]:
        """Return the answer to a query with the fields `function` and `arguments`.

        Args:
            fields: The fields of the call.
            run: The id of the run that asks, if a supervisor started it.

        Raises:
            InvalidInputError: The query is invalid.
        """
        question = FunctionCall.of(fields.text("function"), fields.values("arguments"))
        directory = self._records.on(run)
        inventory_answer = await self.ask(question, run=None if directory is None else directory.id)
        if isinstance(inventory_answer, UnansweredQuery):
            if directory is not None:
                note_query(directory, self._failed(question, inventory_answer.reason))
            raise UnavailableError(
                f"could not ask: {one_line(inventory_answer.reason)}{self._before(question)}",
                where=f"{question.function}()",
                hint=HINT,
            )
        if directory is not None:
            # In another thread, which digests the answer of ten thousand nodes; a lock keeps two
            # from writing one file.
            note_query(
                directory, await asyncio.to_thread(self._answered, question, inventory_answer)
            )
        reply = inventory_answer.answer
        return {"ok": True, "answer": JsonText(reply.text), "warnings": list(reply.warnings)}

    async def ask(
        self, question: FunctionCall, *, run: RunId | None = None
    ) -> InventoryAnswer[FunctionReply] | UnansweredQuery:
        """Return the answer to a query, or `UnansweredQuery`.

        Args:
            question: The query.
            run: The run whose catalog needs the answer; see `RequestService`.

        Raises:
            InvalidInputError: The query is invalid.
        """
        try:
            return await self._asking.ask(question.answer, run=run)
        except (StateError, UnavailableError) as error:
            return UnansweredQuery(reason=str(error))

    def _failed(self, question: FunctionCall, reason: str) -> RecordedQuery:
        return RecordedQuery(
            function=question.function,
            arguments=question.arguments,
            text=question.text,
            at=show_time(self._clock.now()),
            reason=reason,
        )

    def _answered(
        self, question: FunctionCall, answer: InventoryAnswer[FunctionReply]
    ) -> RecordedQuery:
        return replace(
            self._failed(question, ""),
            digest=answer.answer.digest,
            names=answer.answer.names,
            parts=answer.answer.parts,
            revision=answer.revision,
            age=answer.age,
        )

    def _before(self, question: FunctionCall) -> str:
        """Return the last recorded answer to a query, as an addition to the error."""
        for name in islice(self._records.ids(), LOOKED_BACK):
            run = RunDirectory(self._records.directory / name)
            try:
                asked = read_queries(run)
            except StateError:
                continue  # a damaged old record does not concern this error
            for query in asked:
                if (
                    query.call == (question.function, question.arguments)
                    and query.digest is not None
                ):
                    ago = (self._clock.now() - name.time).total_seconds()
                    names = shown_names(query.names) or "no node"
                    return f"; the last answer, {show_duration(ago)} ago, was {names}"
        return ""
