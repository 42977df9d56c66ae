"""Collectors as dependencies of a run: compare what they collected with what they would now.

- A collector in `collected.json` becomes a `Dependency`, and is asked again. `exports` decides
  which resources match.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass

from localpuppet.base.formats.strict_json import loads_again
from localpuppet.fleet.agent.reactions.dependency import AnswerDigest, Dependency
from localpuppet.fleet.exports.collecting import CollectorService
from localpuppet.fleet.exports.recording import digest_of_choice, parts_of_choice, read_collected
from localpuppet.fleet.exports.search import Search
from localpuppet.fleet.inventory.reading import InventoryReader, must_ask
from localpuppet.node.runs.records import Records


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
