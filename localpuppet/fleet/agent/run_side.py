"""The seam between the side of an agent that talks to the bus and the side that runs.

Owns: what the first needs of the second (`RunSide`), and the second in the same process
(`LocalRunSide`). `fleet.agent.split.client.RemoteRunSide` is the second in another process, behind
`fleet.agent.split.server.RunSideServer`. Refuses to know: how either works.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.agent.agent import Agent

# The caller's name, the request's id, and the signed reply.
Answer = tuple[str, str, bytes]


class RunSideAwayError(UnavailableError):
    """The run side is another process, and cannot be asked."""


class RunSide(Protocol):
    """Admits what comes from the bus, runs Puppet, and says how the node is.

    Where it is another process, every call may raise `RunSideAwayError`: it cannot be asked, and
    what became of the messages is unknown. They are then to be handed over again; a message
    that comes twice counts once.
    """

    @property
    def me(self) -> NodeName:
        """Return the node."""
        ...

    async def hear(self, tokens: Sequence[bytes]) -> None:
        """Take signed triggers; those that are admitted are on the disk afterwards.

        Raises:
            StateError: They are not.
        """
        ...

    async def serve(self, token: bytes) -> Answer | None:
        """Do a signed request; return its reply, `None` where nobody is to get one."""
        ...

    async def describe(self) -> bytes:
        """Return how the node is, signed."""
        ...

    def subscribe(self) -> asyncio.Event:
        """Return an event that is set on every change of state; the waiter clears it."""
        ...


class LocalRunSide:
    """The run side in this process.

    Args:
        agent: Hears the triggers.
        serve: Does the requests.
        describe: Returns how the node is, signed.
    """

    def __init__(
        self,
        agent: Agent,
        *,
        serve: Callable[[bytes], Awaitable[Answer | None]],
        describe: Callable[[], bytes],
    ) -> None:
        self._agent = agent
        self._serve = serve
        self._describe = describe

    @property
    def me(self) -> NodeName:
        """Return the node."""
        return self._agent.me

    async def hear(self, tokens: Sequence[bytes]) -> None:
        """Take signed triggers; see `RunSide`."""
        self._agent.receive_triggers(tokens)

    async def serve(self, token: bytes) -> Answer | None:
        """Do a signed request; see `RunSide`."""
        return await self._serve(token)

    async def describe(self) -> bytes:
        """Return how the node is, signed."""
        return self._describe()

    def subscribe(self) -> asyncio.Event:
        """Return an event that is set at each change; see `RunSide`."""
        return self._agent.subscribe()
