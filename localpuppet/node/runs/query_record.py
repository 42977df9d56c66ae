"""`queries.json` of a run: what its catalog asked about other nodes, and what it was told.

Owns: what a question is there, and how many questions a run may ask. Refuses to know:
what questions mean.

- A question that is asked again in the same run stands there once, with its newest answer.
- A question without an answer stands there, too, with the reason: the catalog did not compile.
- An answer does not count as given before it is on the disk.
- What was told of which node only explains a later change: of `MAX_PARTS` nodes in all answers
  together it is kept, and nothing of those of further answers.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.formats.values import Json
from localpuppet.node.runs.listed import read_listed, write_listed
from localpuppet.node.runs.records import RunDirectory

MAX_QUERIES = 256
MAX_PARTS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedQuery:
    """A question and its answer.

    Attributes:
        function: What was called.
        arguments: With which arguments.
        text: The call as one would write it.
        at: When, ISO 8601, UTC.
        digest: Of the answer; `None` where there is none.
        names: The nodes in the answer, sorted.
        revision: The revision of the bus that the answer is from; `None` where there is none.
        age: For how many seconds nobody had said that the answer was current.
        reason: Why there is no answer; empty where there is one.
        parts: Of each node, what was told of it and a short digest of that; empty in older records.
    """

    function: str
    arguments: tuple[Json, ...]
    text: str
    at: str
    digest: str | None = None
    names: tuple[str, ...] = ()
    revision: int | None = None
    age: float | None = None
    reason: str = ""
    parts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def call(self) -> tuple[str, tuple[Json, ...]]:
        """Return what makes it the same question."""
        return self.function, self.arguments

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "RecordedQuery":
        """Return the question in our own JSON.

        Raises:
            StateError: A field is missing.
        """
        try:
            return cls(
                **{
                    **{key: raw[key] for key in ("function", "text", "at", "digest", "reason")},
                    **{key: raw[key] for key in ("revision", "age")},
                    "arguments": tuple(raw["arguments"]),
                    "names": tuple(raw["names"]),
                    "parts": {name: dict(told) for name, told in raw.get("parts", {}).items()},
                }
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StateError(f"is damaged: a query without {error}") from error

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            **{key: getattr(self, key) for key in ("function", "text", "at", "digest", "reason")},
            **{key: getattr(self, key) for key in ("revision", "age", "parts")},
            "arguments": list(self.arguments),
            "names": list(self.names),
        }


def read_queries(run: RunDirectory) -> list[RecordedQuery]:
    """Return what a run asked, in order; nothing where it asked nothing.

    Raises:
        StateError: The file is damaged, or cannot be read.
    """
    return read_listed(run.queries, "queries", RecordedQuery.from_dict)


def note_query(run: RunDirectory, query: RecordedQuery) -> None:
    """Write down what a run asked.

    Raises:
        InvalidInputError: The run has asked too many questions.
    """
    before = [one for one in read_queries(run) if one.call != query.call]
    if len(before) >= MAX_QUERIES:
        raise InvalidInputError(
            f"the run asks more than {MAX_QUERIES} different queries",
            where=query.text[:80],
            hint="ask once for all nodes, and choose among them in Puppet",
        )
    if sum(len(one.parts) for one in (*before, query)) > MAX_PARTS:
        query = replace(query, parts={})
    write_listed(run.queries, "queries", [*before, query])
