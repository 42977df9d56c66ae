"""Repeat a request for a long action until the action has ended."""

import asyncio

from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.requests.client import NodeAnswer, RequestClient
from localpuppet.fleet.requests.request import Arguments

REPLY = 20.0  # seconds for each reply
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 2.0  # seconds between two requests


async def until_over(
    client: RequestClient, node: NodeName, action: str, args: Arguments, *, patience: float
) -> NodeAnswer:
    """Return a node's answer after its action has ended or was rejected.

    Args:
        client: Sends the requests.
        node: The node.
        action: The action.
        args: The arguments of the action.
        patience: Seconds within which it must end.
    """
    pause = FIRST_PAUSE
    try:
        async with asyncio.timeout(patience):
            while True:
                answer = await client.ask(node, action, args, patience=min(REPLY, patience))
                if not working(answer):
                    return answer
                await asyncio.sleep(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
    except TimeoutError:
        problem = f"still working after {patience:g} s (run the command again to resume waiting)"
        return NodeAnswer(reply=None, problem=problem)


def working(answer: NodeAnswer) -> bool:
    """Return whether the node is still working."""
    reply = answer.reply
    return reply is not None and reply.ok and reply.result.get("state") == "working"
