"""How a question of Puppet code is put to the entries of other nodes.

Owns: that the entries are lent for one question, which another thread answers. Refuses to know:
what is asked, and what is made of the answer.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from localpuppet.base.formats.names import RunId
from localpuppet.base.machine.ports import Clock
from localpuppet.fleet.inventory.reading import CouldNotAsk, Found, InventoryReader, ask

T = TypeVar("T")
# Of the run that asks, or of nobody's.
Lend = Callable[[RunId | None], AbstractAsyncContextManager[InventoryReader]]

# What to do where nobody could be asked.
HINT = "'inventory: {max_stale: TIME}' in localpuppet.yaml accepts an older answer"
# Seconds for which the questions of a run without an agent share a listing of the bus.
SHARED = 60.0


class Asking:
    """Asks.

    Args:
        lend: Lends the entries, which say how old the answer is.
        max_stale: For how many seconds an answer counts after the view was last current.
        clock: Time.
    """

    def __init__(self, lend: Lend, *, max_stale: float, clock: Clock) -> None:
        self._lend = lend
        self._max_stale = max_stale
        self._clock = clock

    async def ask(
        self, question: Callable[[InventoryReader], T], *, run: RunId | None
    ) -> Found[T] | CouldNotAsk:
        """Return what a question finds, or that it could not be asked.

        Args:
            question: Reads what it needs and returns the answer.
            run: The run that is on and asks; `None` for what must be as new as can be.

        Raises:
            InvalidInputError: The question is refused.
            UnavailableError: The entries are not lent.
            StateError: The disk refused to have them lent.
        """
        async with self._lend(run) as reader:
            # Another thread: a question to ten thousand nodes must not hold up the agent.
            return await asyncio.to_thread(
                ask,
                reader,
                question,
                now=self._clock.now().timestamp(),
                max_stale=self._max_stale,
            )


def is_shared(current: float | None, *, begun: float, now: float) -> bool:
    """Return whether a listing of the bus does for a question of a run, too.

    Args:
        current: When the listing began: seconds since 1970, UTC; `None` where there was none.
        begun: When the run was asked for.
        now: The time; a clock that was set back makes no listing new.
    """
    return current is not None and begun <= current <= now <= current + SHARED
