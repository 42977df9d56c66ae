"""The reactor's stored state, and how a run changes it.

- A good run replaces the watched queries by its own, with the answers that it received.
- A failed run received its answers too: they are dealt with.
- A decided reaction stays in `pending` until its causes are in the inbox. After a restart the agent
  hands it over again, and the inbox accepts a cause once.
"""

from dataclasses import dataclass, replace
from typing import Protocol

from localpuppet.fleet.agent.reactions.dependency import AnswerDigest, Dependency, FinishedRun
from localpuppet.fleet.agent.reactions.limits import PastReaction
from localpuppet.fleet.triggers.cause import RunCause

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

    def dealt_with(self, newest: AnswerDigest, *, tried: bool) -> "WatchedQuery":
        """Return the query with an answer that is dealt with.

        Args:
            newest: The answer.
            tried: Whether a run received it, or will.
        """
        before = tuple(digest for digest in self.answered_digests if digest != newest.digest)
        return replace(
            self,
            question=replace(self.question, answer=newest),
            answered_digests=(*before, newest.digest)[-MAX_ANSWERED:],
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
        dependencies = {dependency.id: dependency for dependency in run.dependencies}
        if run.good:
            queries = tuple(
                WatchedQuery(question=dependency, base_digest=dependency.answer.digest)
                for dependency in dependencies.values()
            )
        else:
            queries = tuple(
                query.dealt_with(dependencies[query.question.id].answer, tried=True)
                if query.question.id in dependencies
                else query
                for query in self.queries
            )
        return replace(self, run=run.run, queries=queries)


class ReactionStorage(Protocol):
    """Stores the state."""

    def load(self) -> ReactionState:
        """Return the state, empty before the first write.

        Raises:
            StateError: The state is damaged or unreadable.
        """

    def save(self, state: ReactionState) -> None:
        """Write the state durably; on an error the old state remains."""
