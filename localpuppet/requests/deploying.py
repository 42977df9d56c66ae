"""Asks a node for a deployment until it is over: a node does not wait for git before it replies."""

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from localpuppet.errors import InvalidInputError
from localpuppet.requests.client import AT_ONCE, Answer
from localpuppet.requests.request import StatusRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from localpuppet.formats.names import NodeName
    from localpuppet.formats.values import Json
    from localpuppet.requests.client import RequestClient
    from localpuppet.requests.deploy import Deploy

REPLY = 20.0  # seconds for each reply
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 2.0  # between asking a node and asking it again
TOO_OLD = "its localpuppet is too old to take a release by request: update it"


async def deployed(
    client: "RequestClient", node: "NodeName", args: "Deploy", *, patience: float
) -> Answer:
    """Return what a node answered when the deployment was over, or refused.

    Args:
        client: Asks.
        node: Whom.
        args: For what.
        patience: Seconds within which it must be over.

    Raises:
        UnavailableError: The bus cannot be asked.
    """
    pause = FIRST_PAUSE
    try:
        async with asyncio.timeout(patience):
            while True:
                answer = await client.ask(node, "deploy", args, patience=min(REPLY, patience))
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


async def next_serial(
    client: "RequestClient", nodes: "Sequence[NodeName]", *, patience: float, rollout: str = ""
) -> tuple[int, dict[str, Answer]]:
    """Return a serial that is newer than those of nodes, and why some nodes did not tell theirs.

    Args:
        client: Asks.
        nodes: Whom.
        patience: Seconds for a reply.
        rollout: The rollout that wants it: what nodes have taken of it already stays in force.

    Raises:
        UnavailableError: The bus cannot be asked.
    """
    answers = await client.ask_all(nodes, "status", StatusRequest(), patience=patience)
    serials, ours, problems = [0], [0], {}
    for node, answer in answers.items():
        try:
            serial = _serial(answer)
        except InvalidInputError as error:
            problems[node] = _refused(answer, error.what)
            continue
        assignment = answer.reply.result.get("assignment") if answer.reply else None
        is_ours = isinstance(assignment, dict) and rollout and assignment.get("rollout") == rollout
        (ours if is_ours else serials).append(serial)
    return max(ours) or max(serials) + 1, problems


async def deploy_to(
    client: "RequestClient", nodes: "Sequence[NodeName]", args: "Deploy", *, patience: float
) -> dict[str, Answer]:
    """Return what each node answered when its deployment was over, with a serial newer than theirs.

    Args:
        client: Asks.
        nodes: Whom.
        args: For what; the serial is chosen here.
        patience: Seconds within which it must be over on a node.

    Raises:
        UnavailableError: The bus cannot be asked.
    """
    slots = asyncio.Semaphore(AT_ONCE)
    serial, problems = await next_serial(client, nodes, patience=min(REPLY, patience))
    wanted = replace(args, serial=serial)

    async def one(node: "NodeName") -> Answer:
        if node in problems:
            return problems[node]
        async with slots:
            return await deployed(client, node, wanted, patience=patience)

    answers = await asyncio.gather(*map(one, nodes))
    return {str(node): answer for node, answer in zip(nodes, answers, strict=True)}


def _refused(answer: Answer, why: str) -> Answer:
    reply = answer.reply
    if reply is None or not reply.ok:
        return answer
    return replace(answer, reply=replace(reply, ok=False, result={}, error=why))


def _serial(answer: Answer) -> int:
    if answer.reply is None or not answer.ok:
        raise InvalidInputError("the node did not answer")
    return serial_told(answer.reply.result)


def serial_told(status: "Mapping[str, Json]") -> int:
    """Return the serial of the assignment that a node tells of; 0 where it has none.

    Raises:
        InvalidInputError: The node knows no assignments.
    """
    if "assignment" not in status:
        raise InvalidInputError(TOO_OLD)
    assignment = status["assignment"]
    serial = assignment.get("serial") if isinstance(assignment, dict) else 0
    return serial if isinstance(serial, int) and not isinstance(serial, bool) else 0
