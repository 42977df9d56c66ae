"""Send requests to many nodes at once and return the answer of each.

- A node without a reply in time has an answer too: it is unresponsive.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from localpuppet.base.errors import LocalpuppetError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.machine.ports import Clock
from localpuppet.base.value import Value
from localpuppet.fleet.bus import layout
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.requests import exchange, messages
from localpuppet.fleet.requests.reply import NodeReply
from localpuppet.fleet.requests.request import Arguments
from localpuppet.fleet.trust.signing import MessageSigner, Verifier

AT_ONCE = 200  # one watch receives the replies of all
NO_ANSWER = "did not answer in time (check its agent: 'localpuppet nodes')"


class NodeAnswer(Value):
    """The result of a request to one node.

    Attributes:
        reply: The node's signed reply; `None` if the node is unresponsive.
        problem: Why there is no reply, one line; empty with a reply.
    """

    reply: NodeReply | None
    problem: str = ""

    @property
    def unresponsive(self) -> bool:
        """Return whether the node sent no trusted reply."""
        return self.reply is None

    @property
    def ok(self) -> bool:
        """Return whether the node executed the request."""
        return self.reply is not None and self.reply.ok

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: `ok`, `result`, `error`; without a reply also `unresponsive`."""
        if self.reply is None:
            return {"ok": False, "unresponsive": True, "result": {}, "error": self.problem}
        reply = self.reply
        return {"ok": reply.ok, "result": dict(reply.result), "error": reply.error}


@dataclass(slots=True, eq=False)
class RequestClient:
    """Sends requests signed with the caller's key.

    Attributes:
        kv: The connected store.
        signer: Signs as the caller.
        verifier: Verifies the signatures of replies.
        clock: The caller's clock.
    """

    kv: KeyValue
    _: KW_ONLY
    signer: MessageSigner
    verifier: Verifier
    clock: Clock
    _replies: exchange.Replies | None = field(default=None, init=False)
    _heed: Callable[[NodeName, Arguments], Awaitable[None]] | None = field(default=None, init=False)

    @property
    def caller(self) -> str:
        """Return the caller id."""
        return self.signer.name.caller

    def heed_refusals(self, heed: Callable[[NodeName, Arguments], Awaitable[None]]) -> None:
        """Call `heed` on each rejected reply before it is returned; `ask` raises its errors."""
        self._heed = heed

    @asynccontextmanager
    async def together(self) -> AsyncGenerator[None, None]:
        """Use one watch for the replies to all requests within `async with`."""
        async with exchange.Replies(self.kv, self.signer.name) as self._replies:
            try:
                yield
            finally:
                self._replies = None

    async def ask_all(
        self, names: Sequence[NodeName], action: str, args: Arguments, *, patience: float
    ) -> dict[str, NodeAnswer]:
        """Return each node's answer within `patience` seconds; see `ask`."""
        slots = asyncio.Semaphore(AT_ONCE)

        async def ask_node(name: NodeName, replies: exchange.Replies) -> NodeAnswer:
            async with slots:
                return await self._ask(name, action, args, patience, replies)

        async with AsyncExitStack() as stack:
            replies = self._replies
            if replies is None:
                fresh = exchange.Replies(self.kv, self.signer.name)
                replies = await stack.enter_async_context(fresh)
            answers = await asyncio.gather(*(ask_node(name, replies) for name in names))
        return {str(name): answer for name, answer in zip(names, answers, strict=True)}

    async def ask(
        self, node: NodeName, action: str, args: Arguments, *, patience: float
    ) -> NodeAnswer:
        """Send a request to a node and return its answer.

        Args:
            node: The receiver.
            action: One of `fleet.trust.policy.REQUESTS`.
            args: The arguments of the action.
            patience: Seconds to wait for a reply.
        """
        if self._replies is not None:
            return await self._ask(node, action, args, patience, self._replies)
        async with exchange.Replies(self.kv, self.signer.name, node) as replies:
            return await self._ask(node, action, args, patience, replies)

    async def _ask(
        self,
        node: NodeName,
        action: str,
        args: Arguments,
        patience: float,
        replies: exchange.Replies,
    ) -> NodeAnswer:
        life = max(messages.LIFE, math.ceil(patience))
        request, token = messages.ask(self.signer, node, action, args, clock=self.clock, life=life)
        answer = NodeAnswer(reply=None, problem=NO_ANSWER)
        place = layout.requests_of(self.signer.name, node) + request.jti
        asking = replies.ask(token, at=place, node=node, request=request.jti, ttl=life)
        with suppress(TimeoutError):
            async with asyncio.timeout(patience), aclosing(asking) as tokens:
                async for reply_token in tokens:
                    try:
                        reply = messages.read_answer(
                            self.verifier, reply_token, request, clock=self.clock
                        )
                    except LocalpuppetError as error:
                        problem = f"rejected a reply: {error}"
                        answer = NodeAnswer(reply=None, problem=problem)
                        continue
                    answer = NodeAnswer(reply=reply)
                    break
        if answer.problem == NO_ANSWER and (full := await self.kv.fullness()):
            answer = NodeAnswer(reply=None, problem=f"cannot answer: {full}")
        if self._heed is not None and answer.reply is not None and not answer.ok:
            await self._heed(node, args)
        return answer
