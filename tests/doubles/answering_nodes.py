"""Nodes that answer requests in chunks from their keepers, and may change a reply."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.formats.names import NodeName, SignerName
from localpuppet.base.formats.values import Json
from localpuppet.fleet.requests.request import Arguments, ChunkArguments, NodeReply
from localpuppet.fleet.requests.request_client import NO_ANSWER, NodeAnswer, RequestClient
from tests.doubles.memory_store import MemoryKeyValue, MemoryStore


class ChunkKeeper(Protocol):
    """The data of a node that requests ask for."""

    def reply(self, args: ChunkArguments) -> dict[str, Json]: ...


class AnsweringNodes(RequestClient):
    """A client whose nodes are in this process."""

    def __init__(self, action: str, keeper: Callable[[NodeName], ChunkKeeper | None]) -> None:
        super().__init__(
            MemoryKeyValue(MemoryStore()),
            signer=_Caller(),  # type: ignore[arg-type]
            verifier=None,  # type: ignore[arg-type]
            clock=None,  # type: ignore[arg-type]
        )
        self._action = action
        self.keeper = keeper  # returns the keeper of a node; `None` if the node does not answer
        self.asked: list[ChunkArguments] = []  # the arguments of all requests
        # returns what a node sends in place of its reply: a result, or an error
        self.change: Callable[[dict[str, Any]], Mapping[str, Any] | str] = lambda reply: reply

    async def ask(
        self, node: NodeName, action: str, args: Arguments, *, patience: float
    ) -> NodeAnswer:
        assert action == self._action
        assert isinstance(args, ChunkArguments)
        self.asked.append(args)
        keeper = self.keeper(node)
        if keeper is None:
            return NodeAnswer(reply=None, problem=NO_ANSWER)
        try:
            result = self.change(keeper.reply(args))
        except (InvalidInputError, StateError) as error:
            result = str(error)
        refused = isinstance(result, str)
        return NodeAnswer(
            reply=NodeReply(
                node=SignerName(node),
                caller=SignerName("me"),
                iat=1,
                exp=2,
                in_reply_to="3f2504e0-4f89-41d3-9a0c-0305e82c3301",
                ok=not refused,
                result={} if isinstance(result, str) else result,
                error=result if isinstance(result, str) else None,
            )
        )


class _Caller:
    name = SignerName("me")
