"""Queries and collectors of finished runs: compare their recorded answers with the answers now.

- A query in `queries.json` becomes a `Dependency`, and is asked again.
- A collector in `collected.json` becomes a `Dependency`, and is asked again. `exports` decides
  which resources match.

- Runs with `--noop` or `--tags` and runs of a work tree do not count: they do not show what the
  next complete run does.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass

from localpuppet.base.errors import StateError
from localpuppet.base.formats.strict_json import loads_again
from localpuppet.fleet.agent.reactions.dependency import (
    AnswerDigest,
    Dependency,
    DependencySource,
    FinishedRun,
)
from localpuppet.fleet.exports.collecting import CollectorService
from localpuppet.fleet.exports.recording import digest_of_choice, parts_of_choice, read_collected
from localpuppet.fleet.exports.search import Search
from localpuppet.fleet.inventory.query.functions import FunctionCall, FunctionReply
from localpuppet.fleet.inventory.reading import InventoryReader, must_ask
from localpuppet.node.runs.query_record import RecordedQuery, read_queries
from localpuppet.node.runs.records import Records, RunDirectory
from localpuppet.node.runs.run import RunState, Status


@dataclass(frozen=True, slots=True)
class Questions:
    """A `DependencySource` of queries.

    Attributes:
        reader: The entries.
        records: The records of runs.
        now: Returns seconds since 1970, UTC.
        max_stale: Seconds for which an answer is valid after the last update of the view.
    """

    name = "query"

    reader: InventoryReader
    records: Records
    _: KW_ONLY
    now: Callable[[], float]
    max_stale: float

    def dependencies_of(self, run: str) -> Sequence[Dependency]:
        """Return the answers that a run received; see `DependencySource`."""
        asked = read_queries(self.records.get(run))
        return [
            Dependency(
                source=self.name,
                key=json.dumps([query.function, *query.arguments], separators=(",", ":")),
                text=query.text,
                answer=AnswerDigest(
                    digest=query.digest, revision=query.revision or 0, parts=_parts(query)
                ),
            )
            for query in asked
            if query.digest is not None
        ]

    def ask(self, key: str) -> AnswerDigest:
        """Return the answer that a run would receive now; see `DependencySource`."""
        function, *arguments = loads_again(key.encode())
        question = FunctionCall.of(function, arguments)
        answer = must_ask(self.reader, question.answer, now=self.now(), max_stale=self.max_stale)
        reply: FunctionReply = answer.answer
        return AnswerDigest(digest=reply.digest, revision=answer.revision, parts=reply.parts)


def _parts(query: RecordedQuery) -> dict[str, dict[str, str]]:
    """Return the part of each node; answers beyond `MAX_PARTS` have node names only."""
    return {**{name: {} for name in query.names}, **{k: dict(v) for k, v in query.parts.items()}}


@dataclass(frozen=True, slots=True)
class Collectors:
    """A `DependencySource` of collectors.

    Attributes:
        reader: The entries and their age.
        collecting: Answers collectors.
        records: The records of runs.
        now: Returns seconds since 1970, UTC.
        max_stale: Seconds for which an answer is valid after the last update of the view.
    """

    name = "collector"

    reader: InventoryReader
    collecting: CollectorService
    records: Records
    _: KW_ONLY
    now: Callable[[], float]
    max_stale: float

    def dependencies_of(self, run: str) -> Sequence[Dependency]:
        """Return what the collectors of a run received; see `DependencySource`."""
        return [
            Dependency(
                source=self.name,
                key=json.dumps([collector.type, collector.filter], separators=(",", ":")),
                text=collector.text,
                answer=AnswerDigest(
                    digest=collector.digest, revision=collector.revision or 0, parts=collector.parts
                ),
            )
            for collector in read_collected(self.records.get(run))
            if collector.digest is not None
        ]

    def ask(self, key: str) -> AnswerDigest:
        """Return what a collector would receive now; see `DependencySource`."""
        kind, condition = loads_again(key.encode())
        search = Search.parse(condition)
        answer = must_ask(
            self.reader,
            lambda _: self.collecting.collect(kind, search),
            now=self.now(),
            max_stale=self.max_stale,
        )
        choice = answer.answer
        return AnswerDigest(
            digest=digest_of_choice(choice), revision=answer.revision, parts=parts_of_choice(choice)
        )


class FinishedRuns:
    """The recorded runs.

    Args:
        records: The records of runs.
        sources: The kinds of dependencies.
    """

    def __init__(self, records: Records, sources: Sequence[DependencySource]) -> None:
        self._records = records
        self._sources = sources
        self._nothing: tuple[str | None, str | None] | None = None

    def after(self, run: str | None) -> tuple[list[FinishedRun], bool]:
        """Return the complete runs after one, and whether one is running; see `NodeRuns`."""
        ids = self._records.ids()
        newest = (run, ids[0] if ids else None)
        if newest == self._nothing:
            return [], False  # the agent asks often, and usually no run has ended
        later: list[Status] = []
        for name in ids:
            if run is not None and name <= run:
                break
            status = self._records.status(RunDirectory(self._records.directory / name))
            later.append(status)
            if run is None and status.good:
                break
        ended: list[FinishedRun] = []
        for status in reversed(later):
            if status.state is not RunState.FINISHED:
                return ended, True
            if status.whole:
                ended.append(self._ended(status))
        if not ended:
            self._nothing = newest
        return ended, False

    def _ended(self, status: Status) -> FinishedRun:
        dependencies: list[Dependency] = []
        try:
            for source in self._sources:
                dependencies += source.dependencies_of(status.id)
        except StateError:
            return FinishedRun(
                run=status.id, good=False
            )  # the answers that it received are unknown
        return FinishedRun(run=status.id, good=status.good, dependencies=tuple(dependencies))
