"""What Puppet code exports and collects: the verbs `export` and `collect`, and their record.

Owns: that what a catalog exports is refused while it compiles, and that what a collector got is
written down before it is given. Refuses to know: policies, and where exports are kept.

Invariant: "nobody exports that" is an answer; "could not ask" is an error, and no catalog is made
of it.
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
from localpuppet.fleet.agent.asking import HINT, Asking, Lend
from localpuppet.fleet.exports.choosing import Choice, Taken
from localpuppet.fleet.exports.collecting import Collecting
from localpuppet.fleet.exports.recording import (
    Collected,
    answered,
    collector_text,
    note_collected,
    note_exports,
)
from localpuppet.fleet.exports.resource import named_type
from localpuppet.fleet.exports.search import Search
from localpuppet.fleet.inventory.reading import CouldNotAsk, Found
from localpuppet.node.runs.records import Records, RunDirectory


class ExportCalls:
    """Answers the termini of a catalog.

    Args:
        lend: Lends the entries, which say how old the answer is.
        collecting: Answers collectors.
        max_stale: For how many seconds an answer counts after the view was last current.
        records: Where runs are recorded.
        clock: Time.
    """

    def __init__(
        self,
        lend: Lend,
        collecting: Collecting,
        *,
        max_stale: float,
        records: Records,
        clock: Clock,
    ) -> None:
        self._asking = Asking(lend, max_stale=max_stale, clock=clock)
        self._collecting = collecting
        self._records = records
        self._clock = clock

    async def export(self, run: str | None) -> dict[str, Any]:
        """Take what the catalog of a run exports, as it lies in the run's directory.

        Raises:
            InvalidInputError: It cannot be exported, or there is no such run.
        """
        directory = self._records.on(run)
        if directory is None:
            raise InvalidInputError("there is no such run", where="export")
        return {"ok": True, "count": await asyncio.to_thread(note_exports, directory)}

    async def collect(self, fields: Fields, run: str | None) -> dict[str, Any]:
        """Return what a collector gets: `type` and `filter`.

        Args:
            fields: The question.
            run: Whose question it is, where a supervisor started the run.

        Raises:
            InvalidInputError: The policy stops the run, or the question is refused.
        """
        kind = fields.parsed("type", named_type)
        condition: Json = fields.values_or_none("filter")
        search = Search.parse(condition)
        directory = self._records.on(run)
        asked = Collected(type=kind, filter=condition, at=show_time(self._clock.now()))
        where = one_line(collector_text(kind, condition))[:200]
        try:
            found = await self._ask(kind, search, run=None if directory is None else directory.id)
        except LocalpuppetError as error:
            self._note(directory, replace(asked, reason=one_line(str(error))))
            raise error.at(where) from error
        choice = found.answer
        self._note(
            directory,
            answered(replace(asked, revision=found.revision, age=found.age), choice),
        )
        return {
            "ok": True,
            "resources": [_told(one) for one in choice.taken],
            "warnings": await asyncio.to_thread(self._collecting.warnings, choice),
        }

    async def _ask(self, kind: str, search: Search, *, run: RunId | None) -> Found[Choice]:
        found = await self._asking.ask(lambda _: self._collecting.collect(kind, search), run=run)
        if isinstance(found, CouldNotAsk):
            raise UnavailableError(f"could not ask: {one_line(found.reason)}", hint=HINT)
        return found

    def _note(self, run: RunDirectory | None, collected: Collected) -> None:
        if run is not None:
            note_collected(run, collected)


def _told(one: Taken) -> dict[str, Json]:
    """Return a resource as the terminus makes one of it."""
    resource = one.resource
    return {
        "node": one.node,
        "how": str(one.how),
        "title": resource.title,
        "parameters": dict(resource.parameters),
        "file": resource.file,
        "line": resource.line,
    }
