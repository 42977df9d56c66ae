"""From a plan, or from nodes without an order, to the first event of a rollout."""

from collections.abc import Collection, Mapping, Sequence

from localpuppet.errors import InvalidInputError
from localpuppet.formats.names import NodeName
from localpuppet.orchestrator.plan import Plan

Groups = tuple[tuple[NodeName, ...], ...]
Consumers = Mapping[NodeName, tuple[NodeName, ...]]


def groups_of(plan: Plan) -> Groups:
    """Return the nodes of each group of a plan, sorted.

    Raises:
        InvalidInputError: There are none.
    """
    groups = tuple(tuple(sorted(run.node for run in group)) for group in plan.groups)
    return refuse_none(groups)


def one_group(nodes: Collection[NodeName]) -> Groups:
    """Return nodes that are free to run together, as a group.

    Raises:
        InvalidInputError: There are none.
    """
    return refuse_none((tuple(sorted(nodes)),))


def refuse_none(groups: Groups) -> Groups:
    """Return the groups that have nodes.

    Raises:
        InvalidInputError: There are none: what matches nothing is a mistake, not a success.
    """
    found = tuple(group for group in groups if group)
    if not found:
        raise InvalidInputError("the selection matches no node: nothing is rolled out")
    return found


def consumers_of(plan: Plan) -> Consumers:
    """Return which other nodes consume what a node produces; nodes without such are left out."""
    consumers: dict[str, set[NodeName]] = {}
    for run in plan.runs:
        for component in run.components:
            for name in component.consumes:
                consumers.setdefault(name, set()).add(run.node)
    found: dict[NodeName, set[NodeName]] = {}
    for run in plan.runs:
        for component in run.components:
            for name in component.produces:
                found.setdefault(run.node, set()).update(consumers.get(name, ()))
    return {
        node: tuple(sorted(others - {node})) for node, others in found.items() if others - {node}
    }


def only(groups: Groups, nodes: Collection[NodeName]) -> Groups:
    """Return the groups narrowed to some nodes.

    Raises:
        InvalidInputError: None of them is in a group.
    """
    return refuse_none(tuple(tuple(node for node in group if node in nodes) for group in groups))


def needed(
    skipped: Collection[NodeName], consumers: Consumers
) -> Sequence[tuple[NodeName, NodeName]]:
    """Return each node that is to be left out, with one that consumes what that node produces."""
    return [
        (node, other)
        for node in sorted(skipped)
        for other in consumers.get(node, ())
        if other not in skipped
    ]
