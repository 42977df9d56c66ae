"""Decide what follows a changed answer: a reaction, a wait, or a log line with the reason.

- An answer is dealt with if a run received it, if a reaction follows, or if a log line has said why
  none follows. It gets one reaction, whatever the result of the run.
- A return to the answer of the last good run is not a change, unless a run has used another answer
  since.
- A reaction extends the path of the peer that changed, by the rule of triggers (`triggers.chain`):
  if the peer's change goes back to this node, there is no reaction. One peer that is allowed is
  enough; the paths of the others are not used.
- Further changes join a reaction that waits for its run, and do not count towards the limits.

Example: web01's address changed, so `ReactionDecision.causes` is one cause along `(web01,)`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.text import one_line
from localpuppet.base.value import Value
from localpuppet.fleet.agent.reactions.dependency import AnswerDigest
from localpuppet.fleet.agent.reactions.state import (
    HOURLY,
    PastReaction,
    ReactionState,
    WatchedQuery,
    node_waits_until,
    peer_waits_until,
    recent,
)
from localpuppet.fleet.triggers.cause import CauseKind, RunCause
from localpuppet.fleet.triggers.chain import Loop, next_path
from localpuppet.fleet.triggers.change import MAX_QUERY, AnswerChange

# Causes of one reaction, each with its own path; the paths of more peers are not used.
MAX_CAUSES = 32
# The limit of changes that are listed for one peer.
MAX_CHANGES = 8

Path = tuple[NodeName, ...]


class ChangedPeer(Value):
    """A node that changed an answer.

    Attributes:
        node: The node.
        paths: The chains that led to its entry; `()` for a chain that begins there.
        refusal: Why the policy forbids a reaction to it, or `None`.
        change: What it changed.
    """

    node: NodeName
    paths: tuple[Path, ...]
    refusal: str | None
    change: AnswerChange


class NewAnswer(Value):
    """An answer that is not dealt with.

    Attributes:
        watched: The query.
        now: The answer.
        peers: The nodes that changed it.
    """

    watched: WatchedQuery
    now: AnswerDigest
    peers: tuple[ChangedPeer, ...]

    def served(self) -> WatchedQuery:
        """Return the query as it is when a run follows."""
        return self.watched.dealt_with(self.now, tried=True)


class ReactionDecision(Value):
    """What follows.

    Attributes:
        state: The state to store before anything else happens.
        lines: Log lines, each to be written once.
        waiting: Why a reaction has to wait; to be logged once per reason.
        due: When the wait ends, in seconds since 1970 UTC; `None` if no reaction waits.
    """

    state: ReactionState
    lines: tuple[str, ...] = ()
    waiting: str = ""
    due: float | None = None


@dataclass(slots=True, kw_only=True)
class _Verdict:
    """What may follow for one peer: a reaction along a path, a wait, or no reaction."""

    path: Path | None = None
    blocked: str = ""
    until: float = 0.0
    changes: list[AnswerChange] = field(default_factory=list)

    def is_ready(self, now: float) -> bool:
        """Return whether this node may react to the peer now."""
        return self.path is not None and self.until <= now


def decide(
    state: ReactionState,
    seen: Sequence[NewAnswer],
    *,
    me: NodeName,
    now: float,
    waits: bool,
    new_id: Callable[[], str],
) -> ReactionDecision:
    """Return what follows from changed answers.

    Args:
        state: The stored state; no reaction is pending.
        seen: The answers that are not dealt with.
        me: This node.
        now: Seconds since 1970, UTC.
        waits: Whether a reaction waits for its run to start.
        new_id: Returns a new UUID.
    """
    dealt: dict[tuple[str, str], WatchedQuery] = {}
    lines: list[str] = []
    news: list[NewAnswer] = []
    for answer in seen:
        if answer.now.digest == answer.watched.base_digest and not answer.watched.tried:
            back = replace(answer.watched.question, answer=answer.now)
            dealt[answer.watched.question.id] = replace(answer.watched, question=back)
        elif answer.now.digest in answer.watched.answered_digests:
            dealt[answer.watched.question.id] = answer.watched.dealt_with(answer.now, tried=False)
            lines.append(
                _line("this answer already caused a run since the last successful one", answer)
            )
        else:
            news.append(answer)
    verdicts = _verdicts(state.reactions, news, me=me, now=now, waits=waits)
    ready = {node: verdict for node, verdict in sorted(verdicts.items()) if verdict.is_ready(now)}
    free = now if waits else node_waits_until(state.reactions, now)
    if ready and free <= now:
        dealt |= {item.watched.question.id: item.served() for item in news}
        causes = tuple(_causes(ready, me=me, now=now, new_id=new_id))
        made = PastReaction(at=now, nodes=tuple(ready), causes=tuple(cause.id for cause in causes))
        kept = recent(state.reactions, now)
        state = replace(state, reactions=kept if waits else (*kept, made), pending=causes)
        return ReactionDecision(state=_with(state, dealt), lines=tuple(lines))
    for answer in news:
        if all(verdicts[peer.node].path is None for peer in answer.peers):
            dealt[answer.watched.question.id] = answer.watched.dealt_with(answer.now, tried=False)
            lines.append(_line(_why_not(answer, verdicts), answer))
    later = [verdict.until for verdict in verdicts.values() if verdict.path is not None]
    due = max(free, min(later)) if later else None
    return ReactionDecision(
        state=_with(state, dealt),
        lines=tuple(lines),
        waiting=_waiting(due, limited=bool(ready)),
        due=due,
    )


def _verdicts(
    made: Sequence[PastReaction],
    news: Sequence[NewAnswer],
    *,
    me: NodeName,
    now: float,
    waits: bool,
) -> dict[NodeName, _Verdict]:
    """Return what may follow for each peer that changed an answer."""
    verdicts: dict[NodeName, _Verdict] = {}
    for answer in news:
        for peer in answer.peers:
            verdict = verdicts.setdefault(peer.node, _verdict(peer, me))
            if not waits:
                verdict.until = peer_waits_until(made, peer.node, now)
            verdict.changes.append(peer.change)
    return verdicts


def _verdict(peer: ChangedPeer, me: NodeName) -> _Verdict:
    if peer.node == me:
        return _Verdict(blocked="this node's own run changed the answer")
    if peer.refusal is not None:
        return _Verdict(blocked=f"not allowed to make this node react: {peer.refusal}")
    chains = [path for path in peer.paths if len(set(path)) == len(path)]
    if not chains:
        return _Verdict(blocked=f"what {peer.node} says has led to its run is not a chain")
    path = next_path(chains, me=peer.node, receiver=me)
    return _Verdict(blocked=path.reason) if isinstance(path, Loop) else _Verdict(path=path)


def _causes(
    ready: Mapping[NodeName, _Verdict], *, me: NodeName, now: float, new_id: Callable[[], str]
) -> Iterator[RunCause]:
    for verdict in list(ready.values())[:MAX_CAUSES]:
        yield RunCause(
            kind=CauseKind.QUERY,
            sender=me,
            uuid=new_id(),
            path=verdict.path or (),
            timestamp=int(now),
            expires=None,
            changes=tuple(verdict.changes[:MAX_CHANGES]),
        )


def _with(state: ReactionState, dealt: Mapping[tuple[str, str], WatchedQuery]) -> ReactionState:
    return replace(
        state, queries=tuple(dealt.get(query.question.id, query) for query in state.queries)
    )


def _why_not(answer: NewAnswer, verdicts: Mapping[NodeName, _Verdict]) -> str:
    if not answer.peers:
        return "no node published a change to it"
    first = verdicts[answer.peers[0].node].blocked
    more = len(answer.peers) - 1
    return f"{first} (and {more} more nodes that changed it)" if more else first


def _line(why: str, answer: NewAnswer) -> str:
    question = one_line(answer.watched.question.text)[:MAX_QUERY]
    return f"no reaction: {why}; the next run receives the new answer to {question}"


def _waiting(due: float | None, *, limited: bool) -> str:
    if due is None:
        return ""
    why = (
        f"the limit of {HOURLY} reactions an hour is reached"
        if limited
        else "the same nodes changed an answer repeatedly"
    )
    return f"no reaction before {datetime.fromtimestamp(due, UTC):%H:%M:%S} UTC: {why}"
