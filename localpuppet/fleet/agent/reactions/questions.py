"""Queries as dependencies of a run: compare their recorded answers with the answers now.

- A query in `queries.json` becomes a `Dependency`, and is asked again.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass

from localpuppet.base.formats.strict_json import loads_again
from localpuppet.fleet.agent.reactions.dependency import AnswerDigest, Dependency
from localpuppet.fleet.inventory.query.functions import FunctionCall, FunctionReply
from localpuppet.fleet.inventory.reading import InventoryReader, must_ask
from localpuppet.node.runs.query_record import RecordedQuery, read_queries
from localpuppet.node.runs.records import Records


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
