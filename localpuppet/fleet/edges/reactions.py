"""What follows a changed answer: the reactor's stored state, and the decision about a reaction.

- Queries are one kind (`questions`). Anything else that a catalog uses from other nodes and that
  has a digest can be another `DependencySource`.
- A node changed an answer if its part of the answer differs, and it has published an entry since,
  or its entry no longer counts.
- If no node meets both conditions (the bus has restarted its revisions), the nodes whose part
  differs changed the answer.
- If no node's part differs (a count, a query that joins nodes), the nodes that have published an
  entry since changed the answer.
- A good run replaces the watched queries by its own, with the answers that it received.
- A failed run received its answers too: they are dealt with.
- A decided reaction stays in `pending` until its causes are in the inbox. After a restart the agent
  hands it over again, and the inbox accepts a cause once.
- An answer is dealt with if a run received it, if a reaction follows, or if a log line has said why
  none follows. It gets one reaction, whatever the result of the run.
- A return to the answer of the last good run is not a change, unless a run has used another answer
  since.
- A reaction extends the path of the peer that changed, by the rule of triggers (`next_path`):
  if the peer's change goes back to this node, there is no reaction. One peer that is allowed is
  enough; the paths of the others are not used.
- Further changes join a reaction that waits for its run, and do not count towards the limits.

Example: web01's address changed, so `ReactionDecision.causes` is one cause along `(web01,)`.

- The file is replaced, never written in place.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import ClassVar, Protocol

from localpuppet.base.formats.converter import JsonRecord
from localpuppet.base.formats.json_file import read_record
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.strict_json import compact
from localpuppet.base.formats.text import one_line
from localpuppet.base.machine.files import make_private, write_durably
from localpuppet.base.value import Value
from localpuppet.fleet.bus.bus_limits import MAX_CAUSE_QUERY
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.query.parts import Parts
from localpuppet.fleet.triggers.cause import AnswerChange, CauseKind, ChangeKind, RunCause
from localpuppet.fleet.triggers.trigger_admission import next_path


class AnswerDigest(Value):
    """An answer, as far as the reactor compares it; a node whose part is unknown has none."""

    digest: str
    revision: int
    parts: Parts = field(default_factory=dict)

    @property
    def explained(self) -> int:
        """Return the number of nodes whose part is known."""
        return sum(map(bool, self.parts.values()))

    def within(self, most: int) -> "AnswerDigest":
        """Return the answer, with node names only if it has the parts of more than `most` nodes."""
        if self.explained <= most:
            return self
        return replace(self, parts={node: {} for node in self.parts})


class Dependency(Value):
    """One answer that a run received; `source` names the `DependencySource` that can ask again."""

    source: str
    key: str
    text: str
    answer: AnswerDigest

    @property
    def id(self) -> tuple[str, str]:
        """Return what identifies the dependency."""
        return self.source, self.key


class FinishedRun(Value):
    """A finished run of a complete release."""

    run: str
    good: bool
    dependencies: tuple[Dependency, ...] = ()


class DependencySource(Protocol):
    @property
    def name(self) -> str:
        """Return the name of the kind, as in `Dependency.source`."""

    def dependencies_of(self, run: str) -> Sequence[Dependency]:
        """Return the answers that a run received; empty if its record has none."""

    def ask(self, key: str) -> AnswerDigest:
        """Return the answer that a run would receive now.

        Raises:
            UnavailableError: The answer is unknown, for example because the view is too old.
            InvalidInputError: The query has become invalid.
        """


class PeerEntries(Protocol):
    """The entries of other nodes."""

    def entry(self, node: NodeName) -> InventoryEntry | None:
        """Return a node's newest entry; `None` if it has none that counts."""

    def since(self, revision: int) -> set[str]:
        """Return the nodes that have published an entry after a revision of the bus."""


class NodeRuns(Protocol):
    def after(self, run: str | None) -> tuple[Sequence[FinishedRun], bool]:
        """Return the complete runs after one, oldest first, and whether one is running.

        For `None`, these are the last good run and all after it.
        """


class Host(Protocol):
    """The agent of this node."""

    @property
    def me(self) -> NodeName:
        """Return the node's name."""

    @property
    def is_running(self) -> bool:
        """Return whether a run of the agent is in progress."""

    def owes(self, causes: Iterable[str]) -> bool:
        """Return whether one of these causes waits for its run to start."""

    def react(self, causes: Sequence[RunCause]) -> None:
        """Accept causes that this node has made; a repeated cause counts once."""


# The limit of nodes that are listed for one change of one answer.
MAX_NODES = 256


def changes(
    text: str,
    before: AnswerDigest,
    now: AnswerDigest,
    *,
    since: Set[str],
    counts: Callable[[str], bool],
) -> dict[str, AnswerChange]:
    """Return the nodes that changed an answer, and how: the first `MAX_NODES` by name."""
    differ = {
        node: AnswerChange.of(text, how, facts)
        for node in sorted({*before.parts, *now.parts})
        for how, facts in [_difference(before.parts.get(node), now.parts.get(node))]
        if how is not None
    }
    by_them = {node: change for node, change in differ.items() if node in since or not counts(node)}
    by_node = by_them or differ
    if not by_node:
        by_node = {node: AnswerChange.of(text, ChangeKind.ELSEWHERE) for node in sorted(since)}
    return dict(list(by_node.items())[:MAX_NODES])


def _difference(
    before: Mapping[str, str] | None, now: Mapping[str, str] | None
) -> tuple[ChangeKind | None, tuple[str, ...]]:
    if before is None or now is None:
        return (ChangeKind.JOINED if before is None else ChangeKind.LEFT), ()
    if not before and now:
        return None, ()  # the earlier record has no parts
    labels = sorted(label for label in {*before, *now} if before.get(label) != now.get(label))
    return (ChangeKind.CHANGED if labels else None), tuple(filter(None, labels))


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
    """When the node reacted, because of which nodes."""

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
    """A query of the last good run; `tried` if a run has received another answer since, or will."""

    question: Dependency
    base_digest: str
    answered_digests: tuple[str, ...] = ()
    tried: bool = False

    def dealt_with(self, newest: AnswerDigest, *, tried: bool) -> "WatchedQuery":
        """Return the query with an answer dealt with; `tried` if a run received it, or will."""
        before = tuple(digest for digest in self.answered_digests if digest != newest.digest)
        return replace(
            self,
            question=replace(self.question, answer=newest),
            answered_digests=(*before, newest.digest)[-MAX_ANSWERED:],
            tried=self.tried or tried,
        )


class ReactionState(JsonRecord):
    """The stored state: reactions of the last hour, and causes that may not be in the inbox yet."""

    SCHEMA: ClassVar = 1
    run: str | None = None
    queries: tuple[WatchedQuery, ...] = ()
    reactions: tuple[PastReaction, ...] = ()
    pending: tuple[RunCause, ...] = ()

    def after(self, run: FinishedRun) -> "ReactionState":
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
        """Return the state, empty before the first write."""

    def save(self, state: ReactionState) -> None:
        """Write the state durably; on an error the old state remains."""


# Causes of one reaction, each with its own path; the paths of more peers are not used.
MAX_CAUSES = 32
# The limit of changes that are listed for one peer.
MAX_CHANGES = 8

DecisionPath = tuple[NodeName, ...]


class ChangedPeer(Value):
    """A node that changed an answer; the chain `()` begins at its entry."""

    node: NodeName
    paths: tuple[DecisionPath, ...]
    refusal: str | None
    change: AnswerChange


class NewAnswer(Value):
    """An answer that is not dealt with."""

    watched: WatchedQuery
    now: AnswerDigest
    peers: tuple[ChangedPeer, ...]

    def served(self) -> WatchedQuery:
        """Return the query as it is when a run follows."""
        return self.watched.dealt_with(self.now, tried=True)


class ReactionDecision(Value):
    """What follows: the state to store first, and when a reaction that waits is due."""

    state: ReactionState
    lines: tuple[str, ...] = ()
    waiting: str = ""
    due: float | None = None


@dataclass(slots=True, kw_only=True)
class _Verdict:
    """What may follow for one peer: a reaction along a path, a wait, or no reaction."""

    path: DecisionPath | None = None
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
    """Return what follows from changed answers that are not dealt with.

    `waits` is whether a reaction waits for its run to start.
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
    return _Verdict(blocked=path) if isinstance(path, str) else _Verdict(path=path)


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
    question = one_line(answer.watched.question.text)[:MAX_CAUSE_QUERY]
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


FILE = Path("agent", "reactions.json")


class ReactionMemory:
    """The stored state."""

    def __init__(self, state: Path) -> None:
        self._path = state / FILE

    def load(self) -> ReactionState:
        """Return the state, empty before the first write."""
        hint = "move it away: the agent rebuilds it from the last successful run"
        return read_record(self._path, ReactionState.from_dict, hint=hint) or ReactionState()

    def save(self, state: ReactionState) -> None:
        """Write the state durably; on an error the old state remains."""
        make_private(self._path.parent)
        # In one line: with one line per node, ten thousand nodes would make the write ten times
        # slower.
        write_durably(self._path, f"{compact(state.to_dict())}\n".encode())
