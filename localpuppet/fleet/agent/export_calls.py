"""Answer the verbs `export` and `collect` of Puppet code, and record the answers.

- An invalid export fails while the catalog compiles.
- The answer to a collector is recorded before it is sent.
- An empty answer is an answer. If the agent cannot ask, the compilation fails.
"""

import asyncio
from dataclasses import replace
from typing import Any

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, UnavailableError
from localpuppet.base.formats.fields import Fields
from localpuppet.base.formats.names import RunId
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.times import show_time
from localpuppet.base.formats.values import Json
from localpuppet.base.machine.ports import Clock
from localpuppet.fleet.agent.request_service import HINT, Lend, RequestService
from localpuppet.fleet.exports.choosing import CollectorResult, TakenResource
from localpuppet.fleet.exports.collecting import CollectorService
from localpuppet.fleet.exports.recording import (
    CollectorRecord,
    answered,
    collector_text,
    note_collected,
    note_exports,
)
from localpuppet.fleet.exports.resource import named_type
from localpuppet.fleet.exports.search import Search
from localpuppet.fleet.inventory.reading import InventoryAnswer, UnansweredQuery
from localpuppet.node.runs.records import Records, RunDirectory


class ExportCalls:
    """Answers the export and collect termini of a catalog.

    Args:
        lend: Lends the entries and their age.
        collecting: Answers collectors.
        max_stale: Seconds for which an answer is valid after the last update of the view.
        records: The records of runs.
        clock: The clock.
    """

    def __init__(
        self,
        lend: Lend,
        collecting: CollectorService,
        *,
        max_stale: float,
        records: Records,
        clock: Clock,
    ) -> None:
        self._asking = RequestService(lend, max_stale=max_stale, clock=clock)
        self._collecting = collecting
        self._records = records
        self._clock = clock

    async def export(self, run: str | None) -> dict[str, Any]:
        """Record the exports that a catalog left in the directory of its run.

        Raises:
            InvalidInputError: An export is invalid, or the run does not exist.
        """
        directory = self._records.on(run)
        if directory is None:
            raise InvalidInputError("this node has no such run", where="export")
        return {"ok": True, "count": await asyncio.to_thread(note_exports, directory)}

    async def collect(self, fields: Fields, run: str | None) -> dict[str, Any]:
        """Return the resources for a collector with the fields `type` and `filter`.

        Args:
            fields: The fields of the call.
            run: The id of the run that asks, if a supervisor started it.

        Raises:
            InvalidInputError: The policy stops the run, or the query is invalid.
        """
        kind = fields.parsed("type", named_type)
        condition: Json = fields.values_or_none("filter")
        search = Search.parse(condition)
        directory = self._records.on(run)
        asked = CollectorRecord(type=kind, filter=condition, at=show_time(self._clock.now()))
        where = one_line(collector_text(kind, condition))[:200]
        try:
            answer = await self._ask(kind, search, run=None if directory is None else directory.id)
        except LocalpuppetError as error:
            self._note(directory, replace(asked, reason=one_line(str(error))))
            raise error.at(where) from error
        choice = answer.answer
        self._note(
            directory,
            answered(replace(asked, revision=answer.revision, age=answer.age), choice),
        )
        return {
            "ok": True,
            "resources": [_to_dict(resource) for resource in choice.taken],
            "warnings": await asyncio.to_thread(self._collecting.warnings, choice),
        }

    async def _ask(
        self, kind: str, search: Search, *, run: RunId | None
    ) -> InventoryAnswer[CollectorResult]:
        answer = await self._asking.ask(lambda _: self._collecting.collect(kind, search), run=run)
        if isinstance(answer, UnansweredQuery):
            raise UnavailableError(f"could not ask: {one_line(answer.reason)}", hint=HINT)
        return answer

    def _note(self, run: RunDirectory | None, collected: CollectorRecord) -> None:
        if run is not None:
            note_collected(run, collected)


def _to_dict(item: TakenResource) -> dict[str, Json]:
    """Return a resource in the form that the terminus expects."""
    resource = item.resource
    return {
        "node": item.node,
        "how": str(item.how),
        "title": resource.title,
        "parameters": dict(resource.parameters),
        "file": resource.file,
        "line": resource.line,
    }
