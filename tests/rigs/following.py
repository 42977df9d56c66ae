"""What a test does with a watch: fold its changes, wait for what should come."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress

from localpuppet.base.errors import LocalpuppetError, UnavailableError
from localpuppet.fleet.bus.key_value import Change, KeyListing, KeyRemoval, KeyValue, KeyWrite


class Follower:
    """Folds the changes of one watch in a task, and nothing else."""

    def __init__(self, store: KeyValue, prefix: str, after: int | None = None) -> None:
        self.prefix = prefix
        self.changes: list[Change] = []
        self.state: dict[str, bytes] = {}
        self.revision = after or 0
        self.error: Exception | None = None
        self._waiting: list[tuple[Callable[[], bool], asyncio.Future[None]]] = []
        self._task = asyncio.create_task(self._follow(store.watch(prefix, after=after)))

    async def _follow(self, watch: AsyncGenerator[Change, None]) -> None:
        try:
            async for change in watch:
                self._take(change)
                self._tell()
        except (LocalpuppetError, AssertionError) as error:
            self.error = error
        finally:
            await watch.aclose()
            self._tell()

    def _tell(self) -> None:
        """Ask each condition after each change: the next one may make it false again."""
        for condition, future in self._waiting:
            if future.done():
                continue
            if condition():
                future.set_result(None)
            elif self.error is not None:
                future.set_exception(self.error)

    def _take(self, change: Change) -> None:
        self.changes.append(change)
        if isinstance(change, KeyListing):
            self.state = {entry.key: entry.value for entry in change.entries}
            self.revision = change.revision
            return
        revision = change.entry.revision if isinstance(change, KeyWrite) else change.revision
        assert revision > self.revision, "out of order, or published twice"
        self.revision = revision
        if isinstance(change, KeyWrite):
            self.state[change.entry.key] = change.entry.value
        else:
            self.state.pop(change.key, None)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a change that makes `condition` true."""
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((condition, future))
        self._tell()
        await future

    async def until_state(self, state: Mapping[str, bytes]) -> None:
        """Wait for these keys and values, and no others."""
        await self.until(lambda: self.state == state)

    async def listed(self) -> KeyListing:
        """Return the first listing."""
        await self.until(lambda: any(isinstance(change, KeyListing) for change in self.changes))
        return next(change for change in self.changes if isinstance(change, KeyListing))

    async def failed(self) -> Exception:
        """Return the error that ends the watch."""
        await self.until(lambda: self.error is not None)
        assert self.error is not None
        return self.error

    @property
    def puts(self) -> list[KeyWrite]:
        return [change for change in self.changes if isinstance(change, KeyWrite)]

    @property
    def gone(self) -> list[KeyRemoval]:
        return [change for change in self.changes if isinstance(change, KeyRemoval)]

    async def stop(self) -> None:
        """End the watch."""
        self._task.cancel()
        await asyncio.wait([self._task])


async def follow(store: KeyValue, prefix: str) -> Follower:
    """Return a follower that has its listing, even if a busy server misses some deadlines."""
    while True:
        follower = Follower(store, prefix)
        with suppress(UnavailableError):
            await follower.listed()
            return follower
