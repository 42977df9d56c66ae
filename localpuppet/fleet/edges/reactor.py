"""Request a run of this node when an answer that its last good run received has changed.

- A query in `queries.json` becomes a `Dependency`, and is asked again.
- A collector in `collected.json` becomes a `Dependency`, and is asked again. `exports` decides
  which resources match.
- Runs with `--noop` or `--tags` and runs of a work tree do not count: they do not show what the
  next complete run does.

- All changes within `DEBOUNCE` seconds after the first share one look.
- Looking takes at most one part in `SHARE` of the time: with ten thousand entries and constant
  changes, the looks are further apart.
- An entry that expires sends no event, so a look follows after `RECHECK` seconds at the latest.

    a change -> wait for more changes -> ask again -> decide -> store -> hand over

- The decision follows from the stored state and the current answers only, so a kill at any moment
  neither loses nor repeats a reaction.
- While a run is in progress, the reactor decides nothing: the run may have received the new answer.
  Its record shows that when it has ended.
- If an answer is unknown, for example because the view is old, nothing has changed.
"""

import asyncio
import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TypeVar

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, StateError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.strict_json import loads_again
from localpuppet.base.machine.ports import Clock, LineKind, Log
from localpuppet.base.machine.waiting import wait_first
from localpuppet.fleet.edges import reactions
from localpuppet.fleet.exports import recording
from localpuppet.fleet.exports.collectors import Search
from localpuppet.fleet.inventory.query.functions import FunctionCall
from localpuppet.fleet.inventory.reading import InventoryAnswer, InventoryReader, must_ask
from localpuppet.fleet.triggers.cause import AnswerChange
from localpuppet.node.runs.query_record import MAX_PARTS, RecordedQuery, read_queries
from localpuppet.node.runs.run import RunState, Status
from localpuppet.node.runs.run_records import Records, RunDirectory

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Source:
    """What both kinds of dependencies need to ask again."""

    reader: InventoryReader
    records: Records
    _: KW_ONLY
    now: Callable[[], float]
    max_stale: float

    def _ask(self, question: Callable[[InventoryReader], T]) -> InventoryAnswer[T]:
        return must_ask(self.reader, question, now=self.now(), max_stale=self.max_stale)


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions(_Source):
    """A `DependencySource` of queries."""

    name = "query"

    def dependencies_of(self, run: str) -> Sequence[reactions.Dependency]:
        """Return the answers that a run received; see `DependencySource`."""
        return [
            reactions.Dependency(
                source=self.name,
                key=json.dumps([query.function, *query.arguments], separators=(",", ":")),
                text=query.text,
                answer=reactions.AnswerDigest(
                    digest=query.digest, revision=query.revision or 0, parts=_parts(query)
                ),
            )
            for query in read_queries(self.records.get(run))
            if query.digest is not None
        ]

    def ask(self, key: str) -> reactions.AnswerDigest:
        """Return the answer that a run would receive now; see `DependencySource`."""
        function, *arguments = loads_again(key.encode())
        answer = self._ask(FunctionCall.of(function, arguments).answer)
        return reactions.AnswerDigest(
            digest=answer.answer.digest, revision=answer.revision, parts=answer.answer.parts
        )


def _parts(query: RecordedQuery) -> dict[str, dict[str, str]]:
    """Return the part of each node; answers beyond `MAX_PARTS` have node names only."""
    return {**{name: {} for name in query.names}, **{k: dict(v) for k, v in query.parts.items()}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Collectors(_Source):
    """A `DependencySource` of collectors."""

    name = "collector"

    collecting: recording.CollectorService

    def dependencies_of(self, run: str) -> Sequence[reactions.Dependency]:
        """Return what the collectors of a run received; see `DependencySource`."""
        return [
            reactions.Dependency(
                source=self.name,
                key=json.dumps([collector.type, collector.filter], separators=(",", ":")),
                text=collector.text,
                answer=reactions.AnswerDigest(
                    digest=collector.digest, revision=collector.revision or 0, parts=collector.parts
                ),
            )
            for collector in recording.read_collected(self.records.get(run))
            if collector.digest is not None
        ]

    def ask(self, key: str) -> reactions.AnswerDigest:
        """Return what a collector would receive now; see `DependencySource`."""
        kind, condition = loads_again(key.encode())
        search = Search.parse(condition)
        answer = self._ask(lambda _: self.collecting.collect(kind, search))
        return reactions.AnswerDigest(
            digest=recording.digest_of_choice(answer.answer),
            revision=answer.revision,
            parts=recording.parts_of_choice(answer.answer),
        )


class FinishedRuns:
    """The recorded runs."""

    def __init__(self, records: Records, sources: Sequence[reactions.DependencySource]) -> None:
        self._records = records
        self._sources = sources
        self._nothing: tuple[str | None, str | None] | None = None

    def after(self, run: str | None) -> tuple[list[reactions.FinishedRun], bool]:
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
        ended: list[reactions.FinishedRun] = []
        for status in reversed(later):
            if status.state is not RunState.FINISHED:
                return ended, True
            if status.whole:
                ended.append(self._ended(status))
        if not ended:
            self._nothing = newest
        return ended, False

    def _ended(self, status: Status) -> reactions.FinishedRun:
        dependencies: list[reactions.Dependency] = []
        try:
            for source in self._sources:
                dependencies += source.dependencies_of(status.id)
        except StateError:
            return reactions.FinishedRun(
                run=status.id, good=False
            )  # the answers that it received are unknown
        return reactions.FinishedRun(
            run=status.id, good=status.good, dependencies=tuple(dependencies)
        )


DEBOUNCE = 2.0
SHARE = 10
RECHECK = 600.0


class Pace:
    """The times of the looks, in seconds of a clock that never goes back."""

    def __init__(self, now: float) -> None:
        self._due = now + DEBOUNCE
        self._free = now

    def changed(self, now: float) -> None:
        """Record that something may have changed."""
        self.look_at(now + DEBOUNCE)

    def look_at(self, due: float) -> None:
        """Schedule a look for `due` at the latest."""
        self._due = min(self._due, due)

    def wait(self, now: float) -> float:
        """Return the seconds until the next look; 0 if it is due."""
        return max(0.0, self._due - now, self._free - now)

    def looked(self, *, begun: float, ended: float) -> None:
        """Record a look that included all changes before `begun`."""
        self._due = ended + RECHECK
        self._free = ended + (ended - begun) * (SHARE - 1)


AGAIN = 30.0


@dataclass(slots=True, eq=False)
class Reactor:
    """Watches the answers and requests runs, `again` seconds after an error at the latest."""

    host: reactions.Host
    _: KW_ONLY
    runs: reactions.NodeRuns
    sources: Sequence[reactions.DependencySource]
    peers: reactions.PeerEntries
    refusal: Callable[[NodeName], str | None]
    memory: reactions.ReactionStorage
    clock: Clock
    log: Log
    new_id: Callable[[], str] = lambda: str(uuid.uuid4())
    again: float = AGAIN
    _state: reactions.ReactionState | None = field(default=None, init=False)
    _logged: str = field(default="", init=False)

    async def run(self, seen: asyncio.Event, changed: asyncio.Event, leave: asyncio.Event) -> None:
        """React until `leave` is set.

        `seen` is set when entries of other nodes may have changed, `changed` when a run may have
        begun or ended.
        """
        pace = Pace(self.clock.monotonic())
        while not leave.is_set():
            await wait_first(leave, seen, changed, seconds=await self._turn(pace))
            if seen.is_set():
                pace.changed(self.clock.monotonic())
            seen.clear()
            changed.clear()

    async def _turn(self, pace: Pace) -> float:
        """Do what is due; return the seconds until the next look without an event."""
        try:
            news, busy = self.catch_up()
            begun = self.clock.monotonic()
            if news:
                pace.changed(begun)
            if busy or pace.wait(begun) > 0:
                return self.again if busy else pace.wait(begun)
            seen = await asyncio.to_thread(self.look)
            pace.looked(begun=begun, ended=self.clock.monotonic())
            # A run may have begun meanwhile: then the next look follows its end.
            wait = 0.0 if self.catch_up()[1] else self.act(seen)
        except LocalpuppetError as error:
            self._log_once(f"no reactions for now: {error}")
            return self.again
        now = self.clock.monotonic()
        if wait is not None:
            pace.look_at(now + wait)
        return pace.wait(now)

    def catch_up(self) -> tuple[bool, bool]:
        """Take in finished runs; return whether there were any, and whether one is in progress."""
        state = self._known()
        ended, busy = self.runs.after(state.run)
        for run in ended:
            state = state.after(run)
        if ended:
            self._remember(state)
        return bool(ended), busy or self.host.is_running

    def look(self) -> list[reactions.NewAnswer]:
        """Return the answers that are not dealt with."""
        seen = []
        sources = {source.name: source for source in self.sources}
        left = MAX_PARTS
        for query in self._known().queries:
            source = sources.get(query.question.source)
            if source is None:
                continue  # of another version
            try:
                now = source.ask(query.question.key)
            except InvalidInputError as error:
                self.log.debug(f"{query.question.text} is not asked: {error}", kind=LineKind.CAUSE)
                continue
            known_answer = query.question.answer
            if now.digest == known_answer.digest:
                left -= known_answer.explained
                continue
            # A bus that was set up again restarts its revisions: any node may have published an
            # entry.
            before = known_answer.revision if known_answer.revision <= now.revision else 0
            since = self.peers.since(before)
            differences = reactions.changes(
                query.question.text, known_answer, now, since=since, counts=self._counts
            )
            peers = tuple(self._peer(NodeName(node), by) for node, by in differences.items())
            now = now.within(left)  # the changed nodes are known by now
            left -= now.explained
            seen.append(reactions.NewAnswer(watched=query, now=now, peers=peers))
        return seen

    def act(self, seen: Sequence[reactions.NewAnswer]) -> float | None:
        """Act on changed answers; return the seconds until the next action, `None` for none."""
        state = self._known()
        now = self.clock.now().timestamp()
        decision = reactions.decide(
            state,
            [answer for answer in seen if answer.watched in state.queries],
            me=self.host.me,
            now=now,
            waits=self.host.owes(cause for made in state.reactions for cause in made.causes),
            new_id=self.new_id,
        )
        for line in decision.lines:  # a kill in between may repeat a line, but loses none
            self.log.info(line, kind=LineKind.CAUSE)
        if decision.state != state:
            self._remember(decision.state)
        self._log_once(decision.waiting)
        if decision.state.pending:
            # The next turn removes it, when the run has begun: one write less before the run.
            self.host.react(decision.state.pending)
        return None if decision.due is None else max(0.0, decision.due - now)

    def _known(self) -> reactions.ReactionState:
        """Return the stored state, and hand over what an earlier agent left pending."""
        if self._state is None:
            self._state = self.memory.load()
        if self._state.pending:
            self.host.react(self._state.pending)
            self._remember(replace(self._state, pending=()))
        return self._state

    def _remember(self, state: reactions.ReactionState) -> None:
        self.memory.save(state)
        self._state = state

    def _peer(self, node: NodeName, change: AnswerChange) -> reactions.ChangedPeer:
        entry = self.peers.entry(node)
        if entry is None:
            # The node was removed, or its entry has expired: a chain begins there.
            return reactions.ChangedPeer(node=node, paths=((),), refusal=None, change=change)
        return reactions.ChangedPeer(
            node=node,
            paths=entry.paths or ((),),
            refusal=self.refusal(node),
            change=change,
        )

    def _counts(self, node: str) -> bool:
        return self.peers.entry(NodeName(node)) is not None

    def _log_once(self, line: str) -> None:
        if line and line != self._logged:
            self.log.info(line, kind=LineKind.CAUSE)
        self._logged = line
