"""A client of requests with a fixed answer, and a fleet that uses it."""

from collections.abc import Sequence
from pathlib import Path

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.names import NodeName, SignerName
from localpuppet.base.formats.values import Json
from localpuppet.fleet.requests.request import Arguments, NodeReply
from localpuppet.fleet.requests.request_client import NodeAnswer, RequestClient
from localpuppet.rollout.events import NodeRun
from localpuppet.rollout.rollout_nodes import FleetNodes
from tests.doubles.identities import verifier
from tests.doubles.memory_store import MemoryKeyValue, MemoryStore
from tests.rollout.simulated import ID, began, node

OWNER = f"choria=alice/rollout/{ID}"
TURN = NodeRun(2, node(1))


def replied(result: dict[str, Json] | str) -> NodeAnswer:
    """Return a reply; one that refuses for a text."""
    fine = not isinstance(result, str)
    return NodeAnswer(
        reply=NodeReply(
            node=SignerName("n"),
            caller=SignerName("alice"),
            iat=0,
            exp=0,
            in_reply_to="",
            ok=fine,
            result={} if isinstance(result, str) else result,
            error=result if isinstance(result, str) else None,
        )
    )


class Client(RequestClient):
    """Gives the answer that a test sets."""

    whose = "choria=alice"

    @property
    def caller(self) -> str:
        return self.whose

    def __init__(self, answer: NodeAnswer | None) -> None:
        self.answer = answer
        self.asked: list[tuple[str, Arguments]] = []

    async def ask_all(
        self, names: Sequence[NodeName], action: str, args: Arguments, *, patience: float
    ) -> dict[str, NodeAnswer]:
        return {name: await self.ask(name, action, args, patience=patience) for name in names}

    async def ask(
        self, node: NodeName, action: str, args: Arguments, *, patience: float
    ) -> NodeAnswer:
        self.asked.append((action, args))
        if self.answer is None:
            raise UnavailableError("away", where="bus")
        return self.answer


def fleet(
    answer: NodeAnswer | None, directory: Path, *, caller: str = "choria=alice"
) -> tuple[FleetNodes, Client]:
    client = Client(answer)
    client.whose = caller
    nodes = FleetNodes(
        MemoryKeyValue(MemoryStore(now=lambda: 0.0)),
        client=client,
        verifier=verifier(directory),
        began=began([1], [1], noop=True, tags=("t",)),
    )
    return nodes, client
