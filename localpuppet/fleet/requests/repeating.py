"""Asks a node for what takes long, again and again, until it is over."""

import asyncio
from typing import TYPE_CHECKING

from localpuppet.fleet.requests.client import Answer

if TYPE_CHECKING:
    from localpuppet.base.formats.names import NodeName
    from localpuppet.fleet.requests.client import RequestClient
    from localpuppet.fleet.requests.request import Arguments

REPLY = 20.0  # seconds for each reply
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 2.0  # between asking a node and asking it again


async def until_over(
    client: "RequestClient", node: "NodeName", action: str, args: "Arguments", *, patience: float
) -> Answer:
    """Return what a node answered when what it was asked for was over, or refused.

    Args:
        client: Asks.
        node: Whom.
        action: For what.
        args: What the action needs.
        patience: Seconds within which it must be over.
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
        problem = f"was still at it after {patience:g} s: asked again, it goes on from there"
        return Answer(reply=None, problem=problem)


def working(answer: Answer) -> bool:
    """Return whether a node is to be asked again."""
    reply = answer.reply
    return reply is not None and reply.ok and reply.result.get("state") == "working"
