"""Send deployments to nodes and wait for their results."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.values import Json, mapping_of
from localpuppet.base.value import Value
from localpuppet.fleet.requests.client import AT_ONCE, NodeAnswer, RequestClient
from localpuppet.fleet.requests.deploy import MAX_SERIAL, Deploy, StatusRequest
from localpuppet.fleet.requests.repeating import REPLY, until_over

TOO_OLD = "its localpuppet is too old to take a release by request: update it"


async def deployed(
    client: RequestClient, node: NodeName, args: Deploy, *, patience: float
) -> NodeAnswer:
    """Return a node's answer after its deployment has ended or was rejected.

    Args:
        client: Sends the requests.
        node: The node.
        args: The deployment.
        patience: Seconds within which it must end.
    """
    return await until_over(client, node, "deploy", args, patience=patience)


async def next_serials(
    client: RequestClient, nodes: Sequence[NodeName], *, patience: float, rollout: str = ""
) -> tuple[dict[str, int], dict[str, NodeAnswer]]:
    """Return a new serial for each node, and the answers of nodes without one.

    Each node has its own serials, so a wrong serial of one node does not affect others.

    Args:
        client: Sends the requests.
        nodes: The nodes.
        patience: Seconds for a reply.
        rollout: The rollout that assigns: its assignment keeps its serial on nodes that have it.
    """
    answers = await client.ask_all(nodes, "status", StatusRequest(), patience=patience)
    serials, problems = {}, {}
    for node, answer in answers.items():
        if answer.reply is None or not answer.ok:
            problems[node] = answer
            continue
        report = reported_assignment(answer.reply.result)
        if report is None:
            refusal = replace(answer.reply, ok=False, result={}, error=TOO_OLD)
            problems[node] = replace(answer, reply=refusal)
        else:
            taken = bool(rollout) and report.rollout == rollout
            serials[node] = min(report.serial + (not taken), MAX_SERIAL)
    return serials, problems


async def deploy_to(
    client: RequestClient, nodes: Sequence[NodeName], args: Deploy, *, patience: float
) -> dict[str, NodeAnswer]:
    """Return each node's answer after its deployment has ended.

    Args:
        client: Sends the requests.
        nodes: The nodes.
        args: The deployment; this function chooses the serials.
        patience: Seconds within which it must end on a node.
    """
    slots = asyncio.Semaphore(AT_ONCE)
    serials, problems = await next_serials(client, nodes, patience=min(REPLY, patience))

    async def deploy_to(node: NodeName) -> NodeAnswer:
        if node in problems:
            return problems[node]
        async with slots:
            wanted = replace(args, serial=serials[node])
            return await deployed(client, node, wanted, patience=patience)

    answers = await asyncio.gather(*map(deploy_to, nodes))
    return {str(node): answer for node, answer in zip(nodes, answers, strict=True)}


class AssignmentReport(Value):
    """A node's assignment by its status.

    Attributes:
        serial: Its serial; 0 without an assignment.
        rollout: The rollout that assigned it; empty for none.
    """

    serial: int = 0
    rollout: str = ""


def reported_assignment(status: Mapping[str, Json]) -> AssignmentReport | None:
    """Return the assignment in a status; `None` if the node's version has no assignments."""
    if "assignment" not in status:
        return None
    assignment = mapping_of(status["assignment"])
    serial, rollout = assignment.get("serial"), assignment.get("rollout")
    return AssignmentReport(
        serial=max(serial, 0) if isinstance(serial, int) and not isinstance(serial, bool) else 0,
        rollout=rollout if isinstance(rollout, str) else "",
    )
