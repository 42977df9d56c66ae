"""How a question of Puppet code is put to the entries of other nodes.

Owns: that the entries are lent for one question, which another thread answers. Refuses to know:
what is asked, and what is made of the answer.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from localpuppet.inventory.reading import CouldNotAsk, Found, InventoryReader, ask
from localpuppet.machine.ports import Clock

T = TypeVar("T")
Lend = Callable[[], AbstractAsyncContextManager[InventoryReader]]

# What to do where nobody could be asked.
HINT = "'inventory: {max_stale: TIME}' in localpuppet.yaml accepts an older answer"


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

    async def ask(self, question: Callable[[InventoryReader], T]) -> Found[T] | CouldNotAsk:
        """Return what a question finds, or that it could not be asked.

        Raises:
            InvalidInputError: The question is refused.
            UnavailableError: The entries are not lent.
            StateError: The disk refused to have them lent.
        """
        async with self._lend() as reader:
            # Another thread: a question to ten thousand nodes must not hold up the agent.
            return await asyncio.to_thread(
                ask,
                reader,
                question,
                now=self._clock.now().timestamp(),
                max_stale=self._max_stale,
            )
