"""The reactor's stored state, and how a run changes it.

- A good run replaces the watched queries by its own, with the answers that it received.
- A failed run received its answers too: they are dealt with.
- A decided reaction stays in `pending` until its causes are in the inbox. After a restart the agent
  hands it over again, and the inbox accepts a cause once.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from localpuppet.base.value import Value
from localpuppet.fleet.agent.reactions.dependency import AnswerDigest, Dependency, FinishedRun
from localpuppet.fleet.triggers.cause import RunCause

HOUR = 3600.0
HOURLY = 6
# Seconds by which the clock may be set back before reactions are forgotten.
SKEW = 60.0
# Seconds until the next reaction to a peer, by the number of its reactions within the hour. The
# first two follow at once, for a value that is removed and added again; a limit of five leaves one
# for others.
PAUSES = (0.0, 0.0, 120.0, 600.0, 1800.0)
# The limit of stored answers to one query that are dealt with.
MAX_ANSWERED = 64


class PastReaction(Value):
    """A reaction.

    Attributes:
        at: Its time in seconds since 1970, UTC.
        nodes: The peers that caused it.
        causes: The ids of its causes.
    """

    at: float
    nodes: tuple[str, ...]
    causes: tuple[str, ...]


def recent(made: Sequence[PastReaction], now: float) -> tuple[PastReaction, ...]:
    """Return the reactions that still count.

    Reactions with a time in the future do not count: a clock that was ahead would block the node.
    """
    return tuple(reaction for reaction in made if now - HOUR < reaction.at <= now + SKEW)


def node_waits_until(made: Sequence[PastReaction], now: float) -> float:
    """Return when the node may react again; `now` or earlier means at once."""
    counted = recent(made, now)
    return now if len(counted) < HOURLY else counted[-HOURLY].at + HOUR


def peer_waits_until(made: Sequence[PastReaction], peer: str, now: float) -> float:
    """Return when the node may react to a peer again; see `node_waits_until`."""
    times = [reaction.at for reaction in recent(made, now) if peer in reaction.nodes]
    return times[-1] + PAUSES[min(len(times), len(PAUSES) - 1)] if times else now


class WatchedQuery(Value):
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


class ReactionState(Value):
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
