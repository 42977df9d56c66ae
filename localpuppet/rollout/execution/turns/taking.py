"""Has nodes take their turns: asks them, and hears within the timeout how each turn ended.

    (look -> compared with what was approved -> (approved -> look)* -> cleared) -> run -> end

Owns: how often a node is asked, and when it counts as silent. Refuses to know: which turns, and
what is written down: what was heard is handed on, and a turn whose changes somebody approved runs
when that is in the journal.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

from localpuppet.base.formats.times import show_duration
from localpuppet.rollout.execution.changes.comparing import compare
from localpuppet.rollout.execution.events import Ended, Event, Fate, Looked, Turn
from localpuppet.rollout.execution.nodes import Asked, Nodes
from localpuppet.rollout.execution.state import State
from localpuppet.rollout.execution.turns.knowing import awaited_by

LOOKS = 5  # how often a node looks before a run that it refuses because the look was too long ago
AGAIN = 2.0  # how soon a node that did not answer is asked again
# How long to wait for the news of an end before the node is asked: news can be lost in an outage.
NEWS = 300.0


class Taking:
    """The turns that nodes take for one process.

    Args:
        state: Where the rollout is; others change it.
        nodes: How its nodes are reached.
        heard: Takes what happened.
    """

    def __init__(self, state: State, nodes: Nodes, heard: Callable[[Event], None]) -> None:
        self._state = state
        self._nodes = nodes
        self._heard = heard
        self._news: dict[Turn, asyncio.Event] = {}
        self._ends: dict[Turn, Ended] = {}
        self._undecided: dict[Turn, tuple[int, asyncio.Event]] = {}

    def look_again(self) -> None:
        """Wake the turns whose changes are approved by now."""
        for turn, (step, decided) in self._undecided.items():
            if self._state.is_decided(turn, step):
                decided.set()

    async def follow(self) -> None:
        """Hear that turns may have ended, for as long as this is awaited."""
        async for news in self._nodes.ends():
            if news.turn in self._news:
                if news.end is not None:
                    self._ends[news.turn] = news.end
                self._news[news.turn].set()

    async def take(self, turn: Turn) -> None:
        """Have a node take a turn; if its changes are to be approved, when they are.

        A node takes a turn only soon after the look. If it does not, it looks again.
        """
        stale = False
        for _ in range(LOOKS):
            if not await self._clear(turn, again=stale):
                return
            end, stale = await self._run(turn)
            if not stale:
                break
        self._heard(end)

    async def _clear(self, turn: Turn, *, again: bool) -> bool:
        """Have a node look until all is approved; return whether it may run then.

        An operator approves what the node saw before. So it looks once more after that.
        """
        while again or self._state.looks(turn):
            again = False
            step, decided = self._state.look_step(turn), asyncio.Event()
            seen = await self._look(turn, step)
            self._undecided[turn] = step, decided
            self._heard(seen)
            if isinstance(seen, Ended):
                return False
            await decided.wait()
        return True

    async def _run(self, turn: Turn) -> tuple[Ended, bool]:
        """Return how a run ended, and whether the node did not begin it because of an old look."""
        state = self._state

        async def start() -> Asked:
            return await self._nodes.start(
                turn,
                epoch=state.epoch,
                serial=state.serials.get(turn.node, 0),
                after=awaited_by(state, turn),
                looked=state.looked.get(turn, 0),
            )

        end, asked = await self._ask(turn, start)
        return replace(end, turn=turn), asked is not None and asked.look_again

    async def _look(self, turn: Turn, step: int) -> Looked | Ended:
        """Return what a turn would change, compared with what was approved."""

        async def look() -> Asked:
            return await self._nodes.look(
                turn, epoch=self._state.epoch, step=step, after=awaited_by(self._state, turn)
            )

        end, asked = await self._ask(Turn(step, turn.node), look)
        if end.fate is not Fate.SUCCEEDED:
            return replace(end, turn=turn, reason=f"before its run, with noop: {end.reason}")
        if self._state.began.approval is None or asked is None or asked.foreseen is None:
            return Ended(turn=turn, fate=Fate.FAILED, reason="did not tell what it would change")
        if not asked.foreseen.whole:
            reason = f"would change {asked.foreseen.total} properties: too many to be approved"
            return Ended(turn=turn, fate=Fate.FAILED, reason=reason)
        difference = compare(self._state.may_change(turn), asked.foreseen)
        return Looked(turn=turn, difference=difference)

    async def _ask(
        self, turn: Turn, ask: Callable[[], Awaitable[Asked]]
    ) -> tuple[Ended, Asked | None]:
        """Ask a node again and again, until it tells how something ended, or the timeout is over.

        Most nodes are asked once: what they tell of the end without being asked is all of it.

        Args:
            turn: What is told when that may have ended.
            ask: Asks it.
        """
        seconds = self._state.began.options.timeout
        news = self._news[turn] = asyncio.Event()
        problem = ""
        try:
            async with asyncio.timeout(seconds):
                while turn not in self._ends:
                    news.clear()
                    asked = await ask()
                    if asked.end is not None:
                        return asked.end, asked
                    problem = "" if asked.heard else asked.problem
                    await _wait(news, NEWS if asked.heard else AGAIN)
                return self._ends.pop(turn), None
        except TimeoutError:
            reason = f"did not tell within {show_duration(seconds)} how its run ended"
            if problem:
                reason += f": {problem}"
            return Ended(turn=turn, fate=Fate.SILENT, reason=reason), None
        finally:
            del self._news[turn]


async def _wait(news: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await news.wait()
