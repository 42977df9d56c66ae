"""Carries a rollout out: asks nodes, hears of ends, and writes everything down before acting on it.

    ready? -> hold -> (start -> end -> check)* -> let go

Owns: the order of these steps, deadlines, and that holds are renewed and given back. Refuses to
know: what is to be done next (`deciding`), how nodes are reached (`nodes`), files.

Invariants: an event is in the journal before anything is done because of it; whatever ends this
work but a kill gives the nodes back; after a kill, `run` with the journal's state goes on.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from localpuppet.errors import UnavailableError
from localpuppet.formats.names import NodeName
from localpuppet.formats.text import shown_names
from localpuppet.formats.times import show_duration
from localpuppet.orchestrator.rollout.checking import Checking
from localpuppet.orchestrator.rollout.deciding import decide
from localpuppet.orchestrator.rollout.events import (
    Checked,
    Ended,
    Ending,
    Event,
    Fate,
    Over,
    Resumed,
    Skipped,
    Started,
    Stopped,
    Turn,
)
from localpuppet.orchestrator.rollout.nodes import Nodes, Problems
from localpuppet.orchestrator.rollout.selecting import needed
from localpuppet.orchestrator.rollout.state import State

# Holds are renewed so often; they last five times as long (`fleet.HOLD`). In seconds.
RENEW = 120.0
AGAIN = 2.0  # how soon a node that did not answer is asked again
# How long to wait for the news of an end before the node is asked: news can be lost in an outage.
NEWS = 300.0
STOPS = 1.0  # how often the journal is looked at for somebody who asked for a stop
LETTING_GO = 2  # how often a node is asked to let go that does not say that it did


class Notes(Protocol):
    """Where events are written down."""

    def append(self, event: Event) -> None:
        """Write an event down; it is on the disk afterwards, or this raises."""
        ...

    def stop_asked(self) -> str | None:
        """Return who asked for a stop, in another process."""
        ...


class Execution:
    """One rollout, carried out by this process.

    Args:
        state: Where it is.
        notes: Its journal.
        nodes: How its nodes are reached.
        checks: Does the checks that follow runs.
        told: Learns of each event.
    """

    def __init__(
        self,
        state: State,
        *,
        notes: Notes,
        nodes: Nodes,
        checks: Checking,
        told: Callable[[Event], None],
    ) -> None:
        self.state = state
        self._notes = notes
        self._nodes = nodes
        self._checks = checks
        self._told = told
        self._news: dict[Turn, asyncio.Event] = {}
        self._heard: asyncio.Queue[Event] = asyncio.Queue()
        self._holding = False
        self._stopping = False
        self._hurried = False
        self._tasks: list[asyncio.Task[None]] = []
        self._checking: set[Turn] = set()

    def stop(self, why: str) -> None:
        """Have no more nodes started; those that run end, and are checked. Again: do not wait."""
        self._hurried = self._stopping
        self._stopping = True
        self._heard.put_nowait(Stopped(ending=Ending.STOPPED, why=why))

    async def run(self, *, resume: bool) -> Over:
        """Carry the rollout out, and return how it ended.

        Args:
            resume: Whether an earlier process began; it may have been killed at any point.

        Raises:
            UnavailableError: The bus could not be asked whether the nodes are ready; nothing
                changed.
            StateError: The journal cannot be written; the holds end by themselves.
        """
        try:
            return await self._run(resume=resume)
        except BaseException:
            if self._holding:  # also where nothing can be written down any more
                await self._nodes.release(self._held, epoch=self.state.epoch)
            raise

    async def give_up(self, why: str) -> Over:
        """End a rollout that an earlier process left: its nodes are given back.

        Turns of which no end is known stay open: their nodes may run yet.

        Args:
            why: One line.

        Raises:
            StateError: The journal cannot be written.
        """
        return await self._let_go(Ending.STOPPED, why)

    async def _run(self, *, resume: bool) -> Over:
        if resume:
            self._note(Resumed())
        if (over := await self._prepare(resume=resume)) is not None:
            return over
        async with asyncio.TaskGroup() as group:
            around = [
                group.create_task(self._follow()),
                group.create_task(self._renew()),
                group.create_task(self._watch_stops()),
            ]
            await self._drive(group)
            for task in (*around, *self._tasks):
                task.cancel()
        stopped = self.state.stopped
        if stopped is None:
            return await self._let_go(Ending.DONE, "")
        return await self._let_go(stopped.ending, stopped.why)

    def _note(self, event: Event) -> None:
        self._notes.append(event)
        self.state.take(event)
        self._told(event)

    @property
    def _held(self) -> list[NodeName]:
        return [node for node in self.state.nodes if node not in self.state.skipped]

    async def _prepare(self, *, resume: bool) -> Over | None:
        """Hold all nodes, or return how the rollout ended because that cannot be."""
        left = [node for node, fate in self.state.fates().items() if fate is None]
        self._holding = resume
        problems = await self._ready(left, resume=resume)
        if not self._skip(problems):
            return await self._refuse(problems, resume=resume, held=resume)
        self._holding = True
        problems = await self._nodes.hold(self._held, epoch=self.state.epoch)
        problems = {node: why for node, why in problems.items() if node in left}
        if not self._skip(problems):
            return await self._refuse(problems, resume=resume, held=True)
        return None

    async def _ready(self, nodes: Collection[NodeName], *, resume: bool) -> Problems:
        try:
            return await self._nodes.ready(nodes)
        except UnavailableError as error:
            if not resume:  # what was begun before may be resumed when the bus is back
                self._note(Over(ending=Ending.NOT_READY, why=str(error), left={}))
            raise

    def _skip(self, problems: Mapping[NodeName, str]) -> bool:
        """Leave out what is not ready, if that is wanted and can be; return whether to go on."""
        if not problems:
            return True
        begun = {turn.node for turn in self.state.started}
        if (
            not self.state.began.options.skip_unready
            or begun & problems.keys()
            or self._needed(problems)
        ):
            return False
        self._note(Skipped(reasons=dict(sorted(problems.items()))))
        return True

    def _needed(self, problems: Collection[NodeName]) -> list[str]:
        pairs = needed({*problems, *self.state.skipped}, self.state.began.consumers)
        return [f"{other} consumes what {node} produces" for node, other in pairs]

    async def _refuse(self, problems: Mapping[NodeName, str], *, resume: bool, held: bool) -> Over:
        shown = "; ".join(f"{node}: {why}" for node, why in sorted(problems.items())[:3])
        more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
        if self.state.began.options.skip_unready and (pairs := self._needed(problems)):
            more += f"; not left out, because {shown_names(pairs)}"
        ending = Ending.STOPPED if resume else Ending.NOT_READY
        why = f"{'not ready: ' if resume else ''}{shown}{more}"
        if held:
            return await self._let_go(ending, why)
        over = Over(ending=ending, why=why, left={})
        self._note(over)
        return over

    async def _drive(self, group: asyncio.TaskGroup) -> None:
        """Start what is due and take what is heard, until nothing is on and nothing is due."""
        for turn in self.state.running:
            self._begin(group, turn)
        while True:
            while not self._heard.empty():
                self._hear(self._heard.get_nowait())
            now = decide(self.state)
            if now.stop:
                self._note(Stopped(ending=Ending.FAILURES, why=now.stop))
                continue
            if now.start:
                self._note(Started(turns=now.start))
                for turn in now.start:
                    self._begin(group, turn)
            for turn in now.check:
                if turn not in self._checking:
                    self._checking.add(turn)
                    self._tasks.append(group.create_task(self._check(turn)))
            if now.over:
                return
            self._hear(await self._heard.get())

    def _hear(self, event: Event) -> None:
        if not isinstance(event, Stopped) or self.state.stopped is None:
            self._note(event)
        if self._hurried:
            for turn in self.state.running:
                self._note(Ended(turn=turn, fate=Fate.SILENT, reason="was not waited for"))
            for turn in self.state.unchecked:
                self._note(Checked(turn=turn, problem="its checks were not waited for"))

    def _begin(self, group: asyncio.TaskGroup, turn: Turn) -> None:
        self._news[turn] = asyncio.Event()
        self._tasks.append(group.create_task(self._take(turn)))

    async def _take(self, turn: Turn) -> None:
        """Have a node take its turn, and hear how that ends, within the timeout."""
        seconds = self.state.began.options.timeout
        problem = ""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    self._news[turn].clear()
                    asked = await self._nodes.start(turn, epoch=self.state.epoch)
                    if asked.end is not None:
                        self._heard.put_nowait(asked.end)
                        return
                    problem = "" if asked.heard else asked.problem
                    await self._wait_for_news(turn, NEWS if asked.heard else AGAIN)
        except TimeoutError:
            reason = f"did not tell within {show_duration(seconds)} how its run ended"
            if problem:
                reason += f": {problem}"
            self._heard.put_nowait(Ended(turn=turn, fate=Fate.SILENT, reason=reason))

    async def _check(self, turn: Turn) -> None:
        problem = await self._checks.problem(turn.node, self.state.checks(turn))
        self._heard.put_nowait(Checked(turn=turn, problem=problem))

    async def _wait_for_news(self, turn: Turn, seconds: float) -> None:
        waiting = asyncio.create_task(self._news[turn].wait())
        try:
            await asyncio.wait([waiting], timeout=seconds)
        finally:
            waiting.cancel()

    async def _follow(self) -> None:
        async for turn in self._nodes.ends():
            if turn in self._news:
                self._news[turn].set()

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW)
            await self._nodes.hold(self._held, epoch=self.state.epoch)

    async def _watch_stops(self) -> None:
        while self.state.stopped is None:
            if caller := self._notes.stop_asked():
                self.stop(f"stopped by {caller}")
                return
            await asyncio.sleep(STOPS)

    async def _let_go(self, ending: Ending, why: str) -> Over:
        left: Mapping[NodeName, str] = dict.fromkeys(self._held, "")
        for _ in range(LETTING_GO):
            left = await self._nodes.release(list(left), epoch=self.state.epoch)
            if not left:
                break
        over = Over(ending=ending, why=why, left=dict(left))
        self._note(over)
        return over
