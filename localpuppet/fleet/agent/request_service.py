"""Answer a query of Puppet code from the entries of other nodes.

- The entries are lent for one query, which runs in another thread.
"""

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from localpuppet.base.formats.names import RunId
from localpuppet.base.machine.ports import Clock
from localpuppet.fleet.inventory.reading import (
    InventoryAnswer,
    InventoryReader,
    UnansweredQuery,
    ask,
)

T = TypeVar("T")
# Lends the entries for the run that asks, or for a query outside of a run.
Lend = Callable[[RunId | None], AbstractAsyncContextManager[InventoryReader]]

# The cure in messages about a query that could not be answered.
HINT = "set 'inventory: {max_stale: TIME}' in localpuppet.yaml to accept an older answer"
# Seconds for which the queries of one run without an agent share a listing of the bus.
SHARED = 60.0
# Seconds after the start of an agent for which queries wait until its view is current. Puppet waits
# 60 s for an answer.
FIRST_LISTING = 20.0
# Seconds between two checks of the view while queries wait.
RECHECK = 0.1


class RequestService:
    """Answers queries from lent entries.

    Args:
        lend: Lends the entries and their age.
        max_stale: Seconds for which an answer is valid after the last update of the view.
        clock: The clock.
    """

    def __init__(self, lend: Lend, *, max_stale: float, clock: Clock) -> None:
        self._lend = lend
        self._max_stale = max_stale
        self._clock = clock

    async def ask(
        self, question: Callable[[InventoryReader], T], *, run: RunId | None
    ) -> InventoryAnswer[T] | UnansweredQuery:
        """Return the answer to a query, or `UnansweredQuery`.

        Args:
            question: Reads the entries and returns the answer.
            run: The run that asks; `None` if the answer must be as new as possible.

        Raises:
            InvalidInputError: The query is invalid.
        """
        async with self._lend(run) as reader:
            # In another thread: a query over ten thousand nodes must not block the agent.
            return await asyncio.to_thread(
                ask,
                reader,
                question,
                now=self._clock.now().timestamp(),
                max_stale=self._max_stale,
            )


class FirstListing:
    """Delays the first queries of an agent until it has listed the bus, or has failed to.

    Args:
        is_current: Returns whether the view may be queried.
        clock: The clock, read when the agent starts.
        recheck: Seconds between two checks of the view.
    """

    def __init__(
        self, is_current: Callable[[], bool], clock: Clock, *, recheck: float = RECHECK
    ) -> None:
        self._is_current = is_current
        self._clock = clock
        self._recheck = recheck
        self._until = clock.monotonic() + FIRST_LISTING

    async def wait(self) -> None:
        """Wait until the view is current, at most until `FIRST_LISTING` after the start.

        Raises:
            StateError: The view cannot be read.
        """
        while self._clock.monotonic() < self._until:
            if self._is_current():
                self._until = 0.0  # later, the age of the view decides
            else:
                await asyncio.sleep(self._recheck)


def is_shared(current: float | None, *, begun: float, now: float) -> bool:
    """Return whether a query of a run may use an existing listing of the bus.

    Args:
        current: When the listing began, in seconds since 1970 UTC; `None` without a listing.
        begun: When the run was requested.
        now: The current time; a clock that was set back does not make a listing new.
    """
    return current is not None and begun <= current <= now <= current + SHARED
