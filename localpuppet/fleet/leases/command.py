"""A command that runs while its node has a lease, and never longer.

    start the command -> renew the lease -> lost? end the command before another can have the lease

Owns: when the lease is renewed, when it counts as lost, and the end of the command then. Refuses to
know: how the lease was taken (`leases.lease`), how the command is guarded (`GuardedCommand`).
"""

import asyncio
import signal
from collections.abc import Callable, Mapping
from typing import Protocol

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.machine.ports import Clock
from localpuppet.fleet.leases.lease import Held, Leases

RETRY = 1.0
# Where a lease cannot be renewed, the command is asked to end when so much of its time is left,
# and is killed a second before the lease is another's.
MARGIN = 0.3


class GuardedCommand(Protocol):
    """A command that ends when we die or hang; `machine.guarded_command` implements it."""

    async def start(self, *, until: float, more: Mapping[str, str]) -> None:
        """Start the command; it is killed at `until` (monotonic seconds).

        Raises:
            OSError: It cannot be started.
        """
        ...

    def good_until(self, until: float) -> None:
        """Let the command go on until then."""
        ...

    def signal(self, number: int) -> None:
        """Signal the command."""
        ...

    def kill(self) -> None:
        """Kill the command and everything below it."""
        ...

    async def wait(self) -> int | None:
        """Return the command's exit code, `-N` for signal N; `None` when its guard was killed."""
        ...


class LeasedCommand:
    """Runs a command under a lease.

    Args:
        leases: Renews the lease and gives it back.
        command: The command.
        program: What the command is called in messages.
        clock: Our own clock.
        fail: Takes an error that does not end the program.
        note: Takes what a person should read.
    """

    def __init__(
        self,
        leases: Leases,
        command: GuardedCommand,
        *,
        program: str,
        clock: Clock,
        fail: Callable[[str], None],
        note: Callable[[str], None],
    ) -> None:
        self._leases = leases
        self._command = command
        self._program = program
        self._clock = clock
        self._fail = fail
        self._note = note

    async def run(self, held: Held) -> int:
        """Return the command's exit code, or 1 when the lease was lost while it ran.

        Raises:
            InvalidInputError: The command cannot be run; the lease was given back.
        """
        command = self._command
        more = {"LOCALPUPPET_LEASE_REVISION": str(held.revision)}
        try:
            await command.start(until=held.until - RETRY, more=more)
        except OSError as error:
            await self._leases.give_back(held)
            raise InvalidInputError(
                f"cannot be run: {error.strerror}", where=self._program
            ) from error
        ended = asyncio.create_task(command.wait())
        pause = held.ttl / 3
        while not (await asyncio.wait([ended], timeout=pause))[0]:
            try:
                renewed = await self._renew(held)
            except UnavailableError as error:
                problem, pause = str(error), RETRY
                if self._clock.monotonic() < held.until - held.ttl * MARGIN:
                    continue
            else:
                problem, pause = "somebody else has it", held.ttl / 3
                if renewed is not None:
                    held = renewed
                    command.good_until(held.until - RETRY)
                    continue
            self._fail(f"the lease {held.name} was lost: {problem}; ending the command")
            await self._end(ended, held.until - RETRY - self._clock.monotonic())
            return 1
        if not await self._give_back(held):
            self._fail(f"the lease {held.name} was lost before the command ended")
            return 1
        code = ended.result()
        if code is None:
            self._fail("what watches over the command was killed; the command was killed, too")
            return 1
        return code if code >= 0 else 128 - code

    async def _renew(self, held: Held) -> Held | None:
        """Renew the lease, in the time that is left for it; after a pause of ours, in a moment."""
        left = held.until - held.ttl * MARGIN - self._clock.monotonic()
        try:
            return await asyncio.wait_for(self._leases.renew(held), max(left, RETRY))
        except TimeoutError as error:
            raise UnavailableError("the bus does not answer", where="bus") from error

    async def _give_back(self, held: Held) -> bool:
        """Let go of the lease; return whether it was ours to the end."""
        try:
            return await self._leases.give_back(held)
        except UnavailableError as error:
            self._note(f"the lease {held.name} expires by itself: {error}")
            return self._clock.monotonic() < held.until

    async def _end(self, ended: "asyncio.Task[int | None]", patience: float) -> None:
        self._command.signal(signal.SIGTERM)
        done, _ = await asyncio.wait([ended], timeout=max(patience, 0))
        if not done:
            self._command.kill()
            await ended
