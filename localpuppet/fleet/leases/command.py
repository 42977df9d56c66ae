"""A command that runs only while its node has a lease.

    start the command -> renew the lease -> lost? end the command before another can have the lease

It renews the lease, and ends the command when the lease is lost. `leases.lease` takes the lease;
`GuardedCommand` guards the command.
"""

import asyncio
import signal
from asyncio import FIRST_COMPLETED
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Protocol

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.machine.ports import Clock
from localpuppet.fleet.leases.lease import HeldLease, Leases

RETRY = 1.0
# If the renewal fails, the command gets TERM when this part of the ttl is left, and KILL a second
# before another holder can take the lease.
MARGIN = 0.3


class GuardedCommand(Protocol):
    """A command that ends if localpuppet dies or hangs: `machine.guarded_command`."""

    async def start(self, *, until: float, more: Mapping[str, str]) -> None:
        """Start the command; it is killed at `until` (monotonic seconds).

        Raises:
            OSError: The command cannot be started.
        """

    def good_until(self, until: float) -> None:
        """Extend the command's deadline to `until` (monotonic seconds)."""

    def signal(self, number: int) -> None:
        """Signal the command."""

    def kill(self) -> None:
        """Kill the command and all its descendants."""

    async def wait(self) -> int | None:
        """Return the command's exit code, `-N` for signal N; `None` if its guard was killed."""


@dataclass(frozen=True, slots=True)
class LeasedCommand:
    """Runs a command under a lease.

    Attributes:
        leases: Renews and releases the lease.
        command: The command.
        program: The command's name in messages.
        clock: The node's clock.
        fail: Reports an error that does not end the program.
        note: Reports what a person should read.
    """

    leases: Leases
    command: GuardedCommand
    _: KW_ONLY
    program: str
    clock: Clock
    fail: Callable[[str], None]
    note: Callable[[str], None]

    async def run(self, held: HeldLease) -> int:
        """Run the command; return its exit code, or 1 if the lease was lost meanwhile.

        Raises:
            InvalidInputError: The command cannot be started; the lease was released.
        """
        command = self.command
        more = {"LOCALPUPPET_LEASE_REVISION": str(held.fence)}
        try:
            await command.start(until=held.until - RETRY, more=more)
        except OSError as error:
            await self.leases.give_back(held)
            raise InvalidInputError(
                f"cannot be run: {error.strerror}", where=self.program
            ) from error
        ended = asyncio.create_task(command.wait())
        pause = held.ttl / 3
        while not await self._pause(held, ended, pause):
            try:
                renewed = await self._renew(held)
            except UnavailableError as error:
                problem, pause = str(error), RETRY
                if self.clock.monotonic() < held.until - held.ttl * MARGIN:
                    continue
                patience = held.until - RETRY - self.clock.monotonic()
            else:
                problem, pause, patience = "another node has it", held.ttl / 3, RETRY
                if renewed is not None:
                    held = renewed
                    command.good_until(held.until - RETRY)
                    continue
            self.fail(f"the lease {held.name} was lost: {problem}; ending the command")
            await self._end(ended, patience)
            return 1
        if not await self._give_back(held):
            self.fail(f"the lease {held.name} was lost before the command ended")
            return 1
        code = ended.result()
        if code is None:
            self.fail("the command's watching process was killed, so the command was killed too")
            return 1
        return code if code >= 0 else 128 - code

    async def _pause(
        self, held: HeldLease, ended: "asyncio.Task[int | None]", seconds: float
    ) -> bool:
        """Wait, but no longer than the store has the lease; return whether the command ended."""
        loss = asyncio.create_task(self.leases.loss(held))
        try:
            await asyncio.wait([ended, loss], timeout=seconds, return_when=FIRST_COMPLETED)
        finally:
            loss.cancel()
        return ended.done()

    async def _renew(self, held: HeldLease) -> HeldLease | None:
        """Renew the lease in the time that is left for it, but wait at least `RETRY` seconds."""
        left = held.until - held.ttl * MARGIN - self.clock.monotonic()
        try:
            return await asyncio.wait_for(self.leases.renew(held), max(left, RETRY))
        except TimeoutError as error:
            raise UnavailableError("the bus does not answer", where="bus") from error

    async def _give_back(self, held: HeldLease) -> bool:
        """Release the lease; return whether this node held it to the end."""
        try:
            return await self.leases.give_back(held)
        except UnavailableError as error:
            self.note(f"the lease {held.name} expires by itself: {error}")
            return self.clock.monotonic() < held.until

    async def _end(self, ended: "asyncio.Task[int | None]", patience: float) -> None:
        self.command.signal(signal.SIGTERM)
        done, _ = await asyncio.wait([ended], timeout=max(patience, 0))
        if not done:
            self.command.kill()
            await ended
