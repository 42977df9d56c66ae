"""Build the first event's parts from a plan, or from nodes without an order."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import field, replace

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.text import one_line, shown_names
from localpuppet.base.formats.values import Json
from localpuppet.base.value import Value
from localpuppet.rollout.execution.events import ExportDependency, NodeRun
from localpuppet.rollout.plans.check import Check
from localpuppet.rollout.plans.plan import Plan

MAX_CHECKS = 100  # of one node run
MAX_TITLE = 100
MAX_PLACE = 255

Groups = tuple[tuple[NodeName, ...], ...]
Consumers = Mapping[NodeName, tuple[NodeName, ...]]
Checks = tuple[Check, ...]


class RolloutSelection(Value):
    """The nodes that a rollout selects, their order and their checks.

    Attributes:
        title: What it rolls out, for people.
        consumers: Node → the nodes that consume what it produces; nodes without any are missing.
        checks: Node run → its checks; runs without any are missing.
        needs: What components consume, as far as nodes of the site produce it.
    """

    groups: Groups
    title: str
    consumers: Consumers = field(default_factory=dict)
    checks: Mapping[NodeRun, Checks] = field(default_factory=dict)
    needs: tuple[ExportDependency, ...] = ()


def of_plan(plan: Plan) -> RolloutSelection:
    """Return the selection of a plan.

    Raises:
        InvalidInputError: The plan has no node, or too many checks follow a run.
    """
    needs = needs_of(plan)
    return RolloutSelection(
        groups=refuse_none(
            tuple(tuple(sorted(run.node for run in group)) for group in plan.groups)
        ),
        title=_title(", ".join(_applications(plan))),
        consumers=consumers_of(needs),
        checks=checks_of(plan),
        needs=needs,
    )


def _applications(plan: Plan) -> list[str]:
    """Return the declared applications, then those of the other nodes, each sorted."""
    declared: set[str] = set()
    known: set[NodeName] = set()
    for run in plan.runs:
        mine = {component.application for component in run.components if component.declared}
        declared |= mine
        known |= {run.node} if mine else set()
    others = {
        component.application
        for run in plan.runs
        if run.node not in known
        for component in run.components
    }
    return [*sorted(declared), *sorted(others - declared)]


def places_of(facts: Mapping[NodeName, Json], fact: str) -> dict[NodeName, str]:
    """Return the place of each node, from a fact.

    Args:
        facts: Node → its value of the fact; `None` if it has none.
        fact: The fact's name.

    Raises:
        InvalidInputError: A node does not have the fact, or has more than one value.
    """
    places: dict[NodeName, str] = {}
    missing = []
    for node, value in sorted(facts.items()):
        if isinstance(value, str | int | float) and str(value):
            places[node] = str(value)[:MAX_PLACE]
        else:
            missing.append(node)
    if missing:
        raise InvalidInputError(
            f"the inventory has no single value of fact {fact!r} for {shown_names(missing)}",
            where="--one-at-a-time-by",
            hint="see 'localpuppet inventory facts NODE'",
        )
    return places


def one_group(nodes: Collection[NodeName], *, title: str) -> RolloutSelection:
    """Return a selection of nodes without an order, as one group.

    Raises:
        InvalidInputError: There are none.
    """
    return RolloutSelection(groups=refuse_none((tuple(sorted(nodes)),)), title=_title(title))


def _title(text: str) -> str:
    return one_line(text)[:MAX_TITLE]


def refuse_none(groups: Groups) -> Groups:
    """Return the groups if they have nodes.

    Raises:
        InvalidInputError: There are no nodes: a selection without a match is an error.
    """
    if not any(groups):
        raise InvalidInputError("the selection matches no node")
    return groups


def needs_of(plan: Plan) -> tuple[ExportDependency, ...]:
    """Return which nodes consume what others produce.

    - Consumers of the same producers are merged, and so are producers with the same consumers: a
      thousand producers for a thousand consumers are one `ExportDependency` in each checkpoint, and
      not a million names.
    - Derived relations (queries) do not count: their consumers can run with older answers.
    """
    producers: dict[str, set[NodeName]] = {}
    consumers: dict[str, set[NodeName]] = {}
    for run in plan.runs:
        for component in run.components:
            if component.declared:
                for name in component.produces:
                    producers.setdefault(name, set()).add(run.node)
                for name in component.consumes:
                    consumers.setdefault(name, set()).add(run.node)
    dependencies: dict[tuple[NodeName, ...], set[NodeName]] = {}
    for name in sorted(producers.keys() & consumers.keys()):
        dependencies.setdefault(tuple(sorted(producers[name])), set()).update(consumers[name])
    together: dict[tuple[NodeName, ...], set[NodeName]] = {}
    for makers, users in dependencies.items():
        if len(users.union(makers)) > 1:
            together.setdefault(tuple(sorted(users)), set()).update(makers)
    return tuple(
        ExportDependency(producers=tuple(sorted(makers)), consumers=users)
        for users, makers in together.items()
    )


def consumers_of(needs: Sequence[ExportDependency]) -> Consumers:
    """Return node → the other nodes that consume what it produces; without empty ones."""
    consumers: dict[NodeName, set[NodeName]] = {}
    for need in needs:
        for node in need.producers:
            consumers.setdefault(node, set()).update(need.consumers)
    return {
        node: tuple(sorted(others - {node}))
        for node, others in consumers.items()
        if others - {node}
    }


def checks_of(plan: Plan) -> dict[NodeRun, Checks]:
    """Return node run → the checks of its components; without empty ones.

    Raises:
        InvalidInputError: More than `MAX_CHECKS` checks follow one run.
    """
    by_run: dict[NodeRun, Checks] = {}
    for run in plan.runs:
        checks = dict.fromkeys(check for component in run.components for check in component.checks)
        if len(checks) > MAX_CHECKS:
            raise InvalidInputError(
                f"{len(checks)} checks follow a run of {run.node}; at most {MAX_CHECKS} are allowed"
            )
        if checks:
            by_run[NodeRun(run.group, run.node)] = tuple(checks)
    return by_run


def only(selected: RolloutSelection, nodes: Collection[NodeName]) -> RolloutSelection:
    """Return a selection reduced to some nodes; empty groups are dropped.

    Raises:
        InvalidInputError: None of the nodes is in a group.
    """
    groups: list[tuple[NodeName, ...]] = []
    checks: dict[NodeRun, Checks] = {}
    for step, group in enumerate(selected.groups, 1):
        left = tuple(node for node in group if node in nodes)
        if not left:
            continue
        groups.append(left)
        for node in left:
            if NodeRun(step, node) in selected.checks:
                checks[NodeRun(len(groups), node)] = selected.checks[NodeRun(step, node)]
    return replace(selected, groups=refuse_none(tuple(groups)), checks=checks)


def needed(
    skipped: Collection[NodeName], consumers: Consumers
) -> Sequence[tuple[NodeName, NodeName]]:
    """Return each skipped node that another node depends on, with that node."""
    return [
        (node, other)
        for node in sorted(skipped)
        for other in consumers.get(node, ())
        if other not in skipped
    ]
