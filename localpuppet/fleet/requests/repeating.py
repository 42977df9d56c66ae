"""Requests for long actions, repeated until they end: deployments, and changes of catalogs.

- The answer has resources and parameter names, never values. Its size is limited.
- A node that rejects the request, is unresponsive or sends a malformed answer is a problem, never
  "no change".
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from localpuppet.base.formats.names import NodeName, ReleasePath
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.values import Json, mapping_of
from localpuppet.base.value import Value
from localpuppet.fleet.requests.arguments import MAX_SERIAL, Compile, Deploy, StatusRequest
from localpuppet.fleet.requests.client import AT_ONCE, NodeAnswer, RequestClient
from localpuppet.fleet.requests.request import Arguments
from localpuppet.node.releases.difference import CatalogChanges

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


COMPARING_AT_ONCE = 50
MOST_TOLD = 2_000  # resources of one node that are read
MOST_KEPT = 20_000  # of all nodes; above this limit only the number is kept
MAX_NAME = 300  # characters of a reference, or of a parameter


class CatalogComparison(Value):
    """The answer of a node.

    Attributes:
        changes: The changes; `None` if unknown.
        problem: Why they are unknown, one line.
    """

    changes: CatalogChanges | None = None
    problem: str = ""


async def compare_on(
    client: RequestClient,
    nodes: Sequence[NodeName],
    release: ReleasePath,
    *,
    patience: float,
) -> dict[NodeName, CatalogComparison]:
    """Return the changes by a release on each node, in the order of the nodes.

    Args:
        client: Sends the requests.
        nodes: The nodes.
        release: The candidate.
        patience: Seconds for each node, which may have to fetch the release first.

    Raises:
        InvalidInputError: The release is not a tag.
    """
    slots = asyncio.Semaphore(COMPARING_AT_ONCE)
    args = Compile(release=release)

    async def compare_node(node: NodeName) -> CatalogComparison:
        async with slots:
            return _understood(await until_over(client, node, "compile", args, patience=patience))

    comparisons = await asyncio.gather(*map(compare_node, nodes))
    return dict(zip(nodes, _kept(comparisons), strict=True))


def _kept(comparisons: Sequence[CatalogComparison]) -> list[CatalogComparison]:
    """Return the answers, cut to the limit for all nodes."""
    kept, room = [], MOST_KEPT
    for comparison in comparisons:
        if comparison.changes is not None and comparison.changes.listed > room:
            comparison = CatalogComparison(
                changes=CatalogChanges(left_out=comparison.changes.count)
            )
        room -= comparison.changes.listed if comparison.changes is not None else 0
        kept.append(comparison)
    return kept


def _understood(answer: NodeAnswer) -> CatalogComparison:
    if answer.reply is None:
        return CatalogComparison(problem=answer.problem)
    if not answer.ok:
        return CatalogComparison(problem=one_line(answer.reply.error or "it refuses"))
    result = answer.reply.result
    added, removed, changed = (result.get(name) for name in ("added", "removed", "changed"))
    left_out = result.get("left_out")
    if (
        not isinstance(added, list)
        or not isinstance(removed, list)
        or not isinstance(changed, dict)
        or type(left_out) is not int
        or left_out < 0
        or len(added) + len(removed) + len(changed) > MOST_TOLD
    ):
        return CatalogComparison(problem="sent an unknown answer (update localpuppet there)")
    return CatalogComparison(
        changes=CatalogChanges(
            added=_names(added),
            removed=_names(removed),
            changed={
                _name(name): _names(inner if isinstance(inner, list) else [])
                for name, inner in changed.items()
            },
            left_out=left_out,
        )
    )


def _names(values: Sequence[Json]) -> tuple[str, ...]:
    return tuple(_name(value) for value in values)


def _name(value: Json) -> str:
    return one_line(value if isinstance(value, str) else "?")[:MAX_NAME]


def by_change(
    comparisons: Mapping[NodeName, CatalogComparison],
) -> list[tuple[CatalogChanges, list[NodeName]]]:
    """Group nodes with equal changes, the largest group first."""
    groups: dict[str, tuple[CatalogChanges, list[NodeName]]] = {}
    for node, comparison in comparisons.items():
        if comparison.changes is not None:
            key = repr(comparison.changes.to_dict())
            groups.setdefault(key, (comparison.changes, []))[1].append(node)
    return sorted(groups.values(), key=lambda group: (-len(group[1]), group[1][0]))


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
