"""What Puppet code asks about other nodes: the verb `query`, its answer and its record.

Owns: that an answer is written down before it is given, and what is said where there is none.
Refuses to know: languages, and where entries are kept.

Invariant: "none" is an answer; "could not ask" is an error, and no catalog is made of it.
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
from localpuppet.fleet.agent.asking import HINT, Asking, Lend
from localpuppet.fleet.inventory.query.functions import Question, Reply
from localpuppet.fleet.inventory.reading import CouldNotAsk, Found
from localpuppet.node.runs.query_record import RecordedQuery, note_query, read_queries
from localpuppet.node.runs.records import Records, RunDirectory

# So many runs are looked through for the last answer to a question.
LOOKED_BACK = 50


class InventoryCalls:
    """Answers questions about nodes.

    Args:
        lend: Lends the entries.
        max_stale: For how many seconds an answer counts after the view was last current.
        records: Where runs are recorded.
        clock: Time.
    """

    def __init__(self, lend: Lend, *, max_stale: float, records: Records, clock: Clock) -> None:
        self._asking = Asking(lend, max_stale=max_stale, clock=clock)
        self._records = records
        self._clock = clock

    async def answer(self, fields: Fields, run: str | None) -> dict[str, Any]:
        """Return the answer to a question: `function` and `arguments`.

        Args:
            fields: The question.
            run: Whose question it is, where a supervisor started the run.

        Raises:
            InvalidInputError: The question is refused.
            StateError: The disk refused to have the answer written down.
        """
        question = Question.of(fields.text("function"), fields.values("arguments"))
        directory = self._records.on(run)
        found = await self.ask(question, run=None if directory is None else directory.id)
        if isinstance(found, CouldNotAsk):
            if directory is not None:
                note_query(directory, self._failed(question, found.reason))
            raise UnavailableError(
                f"could not ask: {one_line(found.reason)}{self._before(question)}",
                where=f"{question.function}()",
                hint=HINT,
            )
        if directory is not None:
            # Another thread digests what ten thousand nodes told; two do not write one file.
            note_query(directory, await asyncio.to_thread(self._answered, question, found))
        reply = found.answer
        return {"ok": True, "answer": JsonText(reply.text), "warnings": list(reply.warnings)}

    async def ask(
        self, question: Question, *, run: RunId | None = None
    ) -> Found[Reply] | CouldNotAsk:
        """Return what a question finds, or that it could not be asked.

        Args:
            question: The question.
            run: The run whose catalog it is for; see `Asking`.

        Raises:
            InvalidInputError: The question is refused.
        """
        try:
            return await self._asking.ask(question.answer, run=run)
        except (StateError, UnavailableError) as error:
            return CouldNotAsk(reason=str(error), current_until=None)

    def _failed(self, question: Question, reason: str) -> RecordedQuery:
        return RecordedQuery(
            function=question.function,
            arguments=question.arguments,
            text=question.text,
            at=show_time(self._clock.now()),
            reason=reason,
        )

    def _answered(self, question: Question, found: Found[Reply]) -> RecordedQuery:
        return replace(
            self._failed(question, ""),
            digest=found.answer.digest,
            names=found.answer.names,
            parts=found.answer.parts,
            revision=found.revision,
            age=found.age,
        )

    def _before(self, question: Question) -> str:
        """Return what the last answer to a question was, to be read behind the reason."""
        for name in islice(self._records.ids(), LOOKED_BACK):
            run = RunDirectory(self._records.directory / name)
            try:
                asked = read_queries(run)
            except StateError:
                continue  # a damaged record of an old run is not what this error is about
            for one in asked:
                if one.call == (question.function, question.arguments) and one.digest is not None:
                    ago = (self._clock.now() - name.time).total_seconds()
                    names = shown_names(one.names) or "no node"
                    return f"; the last answer, {show_duration(ago)} ago, was {names}"
        return ""
