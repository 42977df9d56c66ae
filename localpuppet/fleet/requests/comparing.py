"""Ask nodes how another release would change their catalogs.

- The answer has resources and parameter names, never values. Its size is limited.
- A node that rejects the request, is unresponsive or sends a malformed answer is a problem, never
  "no change".
"""

import asyncio
from collections.abc import Mapping, Sequence

from localpuppet.base.formats.names import NodeName, ReleasePath
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.values import Json
from localpuppet.base.value import Value
from localpuppet.fleet.requests.client import NodeAnswer, RequestClient
from localpuppet.fleet.requests.compile import Compile
from localpuppet.fleet.requests.repeating import until_over
from localpuppet.node.releases.difference import CatalogChanges

AT_ONCE = 50
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
    slots = asyncio.Semaphore(AT_ONCE)
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
