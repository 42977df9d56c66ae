"""Asks a node for a deployment until it is over: a node does not wait for git before it replies."""

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from localpuppet.base.formats.values import mapping_of
from localpuppet.fleet.requests.client import AT_ONCE, Answer
from localpuppet.fleet.requests.deploy import MAX_SERIAL
from localpuppet.fleet.requests.repeating import REPLY, until_over
from localpuppet.fleet.requests.status import StatusRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from localpuppet.base.formats.names import NodeName
    from localpuppet.base.formats.values import Json
    from localpuppet.fleet.requests.client import RequestClient
    from localpuppet.fleet.requests.deploy import Deploy

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
    """
    return await until_over(client, node, "deploy", args, patience=patience)


async def next_serials(
    client: "RequestClient", nodes: "Sequence[NodeName]", *, patience: float, rollout: str = ""
) -> tuple[dict[str, int], dict[str, Answer]]:
    """Return a serial for each node that is newer than its own, and why some did not tell theirs.

    Each node has its own: one that tells of the highest there is spoils no other's.

    Args:
        client: Asks.
        nodes: Whom.
        patience: Seconds for a reply.
        rollout: The rollout that wants it: what a node has taken of it already stays in force.
    """
    answers = await client.ask_all(nodes, "status", StatusRequest(), patience=patience)
    serials, problems = {}, {}
    for node, answer in answers.items():
        if answer.reply is None or not answer.ok:
            problems[node] = answer
            continue
        told = assignment_told(answer.reply.result)
        if told is None:
            refusal = replace(answer.reply, ok=False, result={}, error=TOO_OLD)
            problems[node] = replace(answer, reply=refusal)
        else:
            taken = bool(rollout) and told.rollout == rollout
            serials[node] = min(told.serial + (not taken), MAX_SERIAL)
    return serials, problems


async def deploy_to(
    client: "RequestClient", nodes: "Sequence[NodeName]", args: "Deploy", *, patience: float
) -> dict[str, Answer]:
    """Return what each node answered when its deployment was over.

    Args:
        client: Asks.
        nodes: Whom.
        args: For what; the serials are chosen here.
        patience: Seconds within which it must be over on a node.
    """
    slots = asyncio.Semaphore(AT_ONCE)
    serials, problems = await next_serials(client, nodes, patience=min(REPLY, patience))

    async def one(node: "NodeName") -> Answer:
        if node in problems:
            return problems[node]
        async with slots:
            wanted = replace(args, serial=serials[node])
            return await deployed(client, node, wanted, patience=patience)

    answers = await asyncio.gather(*map(one, nodes))
    return {str(node): answer for node, answer in zip(nodes, answers, strict=True)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a node tells of its assignment.

    Attributes:
        serial: Its serial; 0 where it has none.
        rollout: The rollout that gave it; empty for none.
    """

    serial: int = 0
    rollout: str = ""


def assignment_told(status: "Mapping[str, Json]") -> Told | None:
    """Return what a node tells of its assignment; `None` where it knows no assignments."""
    if "assignment" not in status:
        return None
    told = mapping_of(status["assignment"])
    serial, rollout = told.get("serial"), told.get("rollout")
    return Told(
        serial=max(serial, 0) if isinstance(serial, int) and not isinstance(serial, bool) else 0,
        rollout=rollout if isinstance(rollout, str) else "",
    )
