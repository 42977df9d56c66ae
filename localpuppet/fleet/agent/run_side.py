"""The port between the network side of an agent and its run side.

- `RunSide` is what the network side uses. `LocalRunSide` implements it in the same process.
- `fleet.agent.split.client.RemoteRunSide` implements it over a socket to another process, where
  `fleet.agent.split.server.RunSideServer` answers.
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
    """The run side is another process and is unreachable."""


class RunSide(Protocol):
    """Admits messages from the bus, runs Puppet and describes the node.

    In another process, each call may raise `RunSideAwayError`: then it is unknown whether the run
    side has the messages. Hand them over again; a message that arrives twice counts once.
    """

    @property
    def me(self) -> NodeName:
        """Return the node's name."""

    async def hear(self, tokens: Sequence[bytes]) -> None:
        """Take signed triggers and write the admitted ones to disk."""

    async def serve(self, token: bytes) -> Answer | None:
        """Execute a signed request and return its reply; `None` for no reply."""

    async def describe(self) -> bytes:
        """Return the signed description of the node."""

    async def contended(self) -> None:
        """Note that another agent publishes as this node."""

    def subscribe(self) -> asyncio.Event:
        """Return an event that is set on each change; the subscriber clears it."""


class LocalRunSide:
    """The run side in this process.

    Args:
        agent: Takes the triggers.
        serve: Executes requests.
        describe: Returns the signed description of the node.
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
        """Return the node's name."""
        return self._agent.me

    async def hear(self, tokens: Sequence[bytes]) -> None:
        """Take signed triggers; see `RunSide`."""
        self._agent.receive_triggers(tokens)

    async def serve(self, token: bytes) -> Answer | None:
        """Execute a signed request; see `RunSide`."""
        return await self._serve(token)

    async def describe(self) -> bytes:
        """Return the signed description of the node."""
        return self._describe()

    async def contended(self) -> None:
        """See `RunSide`."""
        self._agent.note_other_agent()

    def subscribe(self) -> asyncio.Event:
        """Return an event that is set on each change; see `RunSide`."""
        return self._agent.subscribe()
