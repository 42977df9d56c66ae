"""Lend the entries of other nodes for a question, and answer it in another thread.

- The entries come from the view that an agent keeps current, else from a listing of the bus.
- The age of the view decides whether it may be queried. If an agent is running while the bus is
  unreachable, the agent's view ages.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from localpuppet.base.errors import StateError, UnavailableError
from localpuppet.base.formats.names import RunId
from localpuppet.base.formats.text import shown_names
from localpuppet.base.machine.flock import is_locked
from localpuppet.base.machine.ports import Clock
from localpuppet.fleet.inventory import reading
from localpuppet.fleet.inventory.view import View

T = TypeVar("T")
# Lends the entries for the run that asks, or for a query outside of a run.
Lend = Callable[[RunId | None], AbstractAsyncContextManager[reading.InventoryReader]]

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
    """Answers queries from lent entries."""

    def __init__(self, lend: Lend, *, max_stale: float, clock: Clock) -> None:
        self._lend = lend
        self._max_stale = max_stale
        self._clock = clock

    async def ask(
        self, question: Callable[[reading.InventoryReader], T], *, run: RunId | None
    ) -> reading.InventoryAnswer[T] | str:
        """Return the answer to a query of a run; without a run, it must be as new as possible."""
        async with self._lend(run) as reader:
            # In another thread: a query over ten thousand nodes must not block the agent.
            return await asyncio.to_thread(
                reading.ask,
                reader,
                question,
                now=self._clock.now().timestamp(),
                max_stale=self._max_stale,
            )


class FirstListing:
    """Delays the first queries of an agent until it has listed the bus, or has failed to."""

    def __init__(
        self, is_current: Callable[[], bool], clock: Clock, *, recheck: float = RECHECK
    ) -> None:
        self._is_current = is_current
        self._clock = clock
        self._recheck = recheck
        self._until = clock.monotonic() + FIRST_LISTING

    async def wait(self) -> None:
        """Wait until the view is current, at most until `FIRST_LISTING` after the start."""
        while self._clock.monotonic() < self._until:
            if self._is_current():
                self._until = 0.0  # later, the age of the view decides
            else:
                await asyncio.sleep(self._recheck)


def is_shared(current: float | None, *, begun: float, now: float) -> bool:
    """Return whether a query of a run may use an existing listing of the bus.

    `current` is when the listing began. A clock that was set back does not make a listing new.
    """
    return current is not None and begun <= current <= now <= current + SHARED


@dataclass(frozen=True, slots=True)
class EntryLender:
    """Lends the entries to commands and Puppet code of this node.

    Attributes:
        list_bus: Lists the bus into the view; gets what takes warnings for a person.
        trusts: The files that decide which entries count.
    """

    view: Callable[[], View]
    _: KW_ONLY
    list_bus: Callable[[Callable[[str], None]], Awaitable[reading.UnlistedNodes]]
    require_bus: Callable[[], None]
    trusts: Sequence[Path | None]
    max_stale: float
    state: Path
    clock: Clock

    def agent_is_there(self) -> bool:
        """Return whether an agent of this node is running."""
        return is_locked(self.state / "agent" / "lock")

    @asynccontextmanager
    async def reader(
        self, note: Callable[[str], None], run: RunId | None = None, *, warns: bool = True
    ) -> AsyncGenerator[View, None]:
        """Lend the entries.

        Args:
            run: The run that queries during compilation. Without an agent, its queries share one
                listing, and so see one moment.
            warns: Whether to note nodes that are online without an entry.

        Raises:
            UnavailableError: The settings name no bus; without an agent, the bus is unreachable; or
                the view cannot be read or written.
        """
        self.require_bus()
        view = self.view()
        try:
            there = self.agent_is_there() and self.is_current(view)
            if not (there or (run is not None and self._is_shared(view, run))):
                unlisted = await self.list_bus(note)
                if unlisted.names and warns and run is None:
                    note(f"online without an entry of a good run: {shown_names(unlisted.names)}")
        except UnavailableError:
            if not self.agent_is_there():
                raise
        except StateError as error:
            raise UnavailableError(error.what, where=error.where, hint=error.hint) from error
        try:
            yield view
        finally:
            view.close()

    def ask(
        self, reader: reading.InventoryReader, question: Callable[[reading.InventoryReader], T]
    ) -> reading.InventoryAnswer[T]:
        """Return the answer to a question.

        Raises:
            UnavailableError: The view is too old, or cannot be read.
        """
        hint = "check that the bus is reachable"
        return reading.must_ask(
            reader, question, now=self._now(), max_stale=self.max_stale, hint=hint
        )

    async def answer(
        self,
        question: Callable[[reading.InventoryReader], T],
        note: Callable[[str], None],
        *,
        warns: bool = True,
    ) -> reading.InventoryAnswer[T]:
        """Return the answer to a question from lent entries; see `reader` and `ask`."""
        async with self.reader(note, warns=warns) as view:
            return self.ask(view, question)

    def lend(self, note: Callable[[str], None] | None) -> Lend:
        """Return a function that lends the entries.

        Args:
            note: Takes what a person should read; `None` in the agent, which keeps one view open:
                opening costs more than an answer.
        """
        if note is not None:
            return partial(self.reader, note)
        view = self.view()
        listing = FirstListing(partial(self.is_current, view), self.clock)

        @asynccontextmanager
        async def lend(_: RunId | None) -> AsyncGenerator[reading.InventoryReader, None]:
            self.require_bus()
            await listing.wait()
            yield view

        return lend

    def is_current(self, view: View) -> bool:
        """Return whether a view is recent enough for queries."""
        current = view.current_until()
        return current is not None and self._now() - current <= self.max_stale

    def _is_shared(self, view: View, run: RunId) -> bool:
        """Return whether the bus was listed for a run a moment ago, under the current trust."""
        return view.trust == self.trust() and is_shared(
            view.current_until(), begun=run.time.timestamp(), now=self._now()
        )

    def trust(self) -> str:
        """Return a stamp of the trusted keys and the policies; it differs after each change.

        A key that is pinned or revoked changes its directory.
        """
        return " ".join(_stamp(path) for path in self.trusts if path is not None)

    def _now(self) -> float:
        return self.clock.now().timestamp()


def _stamp(path: Path) -> str:
    try:
        status = path.stat()
    except OSError:
        return "-"
    return f"{status.st_ino}.{status.st_mtime_ns}.{status.st_size}"
