"""The reactor's stored state, its JSON form (schema version 1), and how a run changes it.

- A good run replaces the watched queries by its own, with the answers that it received.
- A failed run received its answers too: they are dealt with.
- A decided reaction stays in `pending` until its causes are in the inbox. After a restart the agent
  hands it over again, and the inbox accepts a cause once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from localpuppet.base.errors import StateError
from localpuppet.base.formats.schema_number import check_schema
from localpuppet.fleet.agent.reactions.dependency import AnswerDigest, Dependency, FinishedRun
from localpuppet.fleet.agent.reactions.limits import PastReaction
from localpuppet.fleet.triggers.cause import RunCause

SCHEMA = 1
# The limit of stored answers to one query that are dealt with.
MAX_ANSWERED = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedQuery:
    """A query of the last good run.

    Attributes:
        question: The query, and the last answer that is dealt with.
        base_digest: The digest of the answer that the last good run received.
        answered_digests: Digests of the answers since that are dealt with.
        tried: Whether a run has received another answer since, or will.
    """

    question: Dependency
    base_digest: str
    answered_digests: tuple[str, ...] = ()
    tried: bool = False

    def dealt_with(self, told: AnswerDigest, *, tried: bool) -> "WatchedQuery":
        """Return the query with an answer that is dealt with.

        Args:
            told: The answer.
            tried: Whether a run received it, or will.
        """
        before = tuple(digest for digest in self.answered_digests if digest != told.digest)
        return replace(
            self,
            question=replace(self.question, answer=told),
            answered_digests=(*before, told.digest)[-MAX_ANSWERED:],
            tried=self.tried or tried,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReactionState:
    """The stored state.

    Attributes:
        run: The last run that was processed; `None` before the first.
        queries: The queries of the last good run.
        reactions: The reactions of the last hour, oldest first.
        pending: The causes of a reaction that may not be in the inbox yet.
    """

    run: str | None = None
    queries: tuple[WatchedQuery, ...] = ()
    reactions: tuple[PastReaction, ...] = ()
    pending: tuple[RunCause, ...] = ()

    def after(self, run: FinishedRun) -> "ReactionState":
        """Return the state after a run."""
        told = {one.id: one for one in run.told}
        if run.good:
            queries = tuple(
                WatchedQuery(question=one, base_digest=one.answer.digest) for one in told.values()
            )
        else:
            queries = tuple(
                one.dealt_with(told[one.question.id].answer, tried=True)
                if one.question.id in told
                else one
                for one in self.queries
            )
        return replace(self, run=run.run, queries=queries)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "schema": SCHEMA,
            "run": self.run,
            "queries": [
                {
                    "source": one.question.source,
                    "key": one.question.key,
                    "text": one.question.text,
                    "answer": one.question.answer.to_dict(),
                    "base_digest": one.base_digest,
                    "answered_digests": list(one.answered_digests),
                    "tried": one.tried,
                }
                for one in self.queries
            ],
            "reactions": [
                {"at": one.at, "nodes": list(one.nodes), "causes": list(one.causes)}
                for one in self.reactions
            ],
            "pending": [cause.to_dict() for cause in self.pending],
        }

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> "ReactionState":
        """Read the JSON form.

        Raises:
            StateError: This version did not write it.
        """
        try:
            check_schema(raw, SCHEMA)
            return cls(
                run=raw["run"],
                queries=tuple(_query(one) for one in raw["queries"]),
                reactions=tuple(
                    PastReaction(
                        at=float(one["at"]),
                        nodes=tuple(one["nodes"]),
                        causes=tuple(one["causes"]),
                    )
                    for one in raw["reactions"]
                ),
                pending=tuple(RunCause.from_dict(one) for one in raw["pending"]),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StateError(f"is damaged: {type(error).__name__}", where="reactions") from error


class ReactionStorage(Protocol):
    """Stores the state."""

    def load(self) -> ReactionState:
        """Return the state, empty before the first write.

        Raises:
            StateError: The state is damaged or unreadable.
        """
        ...

    def save(self, state: ReactionState) -> None:
        """Write the state durably; on an error the old state remains."""
        ...


def _query(raw: Mapping[str, Any]) -> WatchedQuery:
    question = Dependency(
        source=raw["source"],
        key=raw["key"],
        text=raw["text"],
        answer=AnswerDigest.from_dict(raw["answer"]),
    )
    return WatchedQuery(
        question=question,
        base_digest=raw["base_digest"],
        answered_digests=tuple(raw["answered_digests"]),
        tried=raw["tried"] is True,
    )
