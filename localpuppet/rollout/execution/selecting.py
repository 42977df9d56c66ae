"""The nodes of a rollout: from a plan or a query, without unready ones, as approved.

How the changes of one node are compared is in `changes.comparing`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace
from itertools import zip_longest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.text import one_line, shown_names
from localpuppet.base.formats.values import Json
from localpuppet.base.value import Value
from localpuppet.rollout.execution.approval import Approval, digest_of
from localpuppet.rollout.execution.events import (
    ExportDependency,
    NodeRun,
    RolloutBegan,
    RolloutEnding,
)
from localpuppet.rollout.execution.options import RolloutOptions
from localpuppet.rollout.execution.state import RolloutState
from localpuppet.rollout.plans.plan import Plan
from localpuppet.rollout.plans.site import Check

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


SHOWN = 3  # reasons in a message


def can_do_without(state: RolloutState, problems: Collection[NodeName]) -> bool:
    """Return whether nodes may be left out.

    The options must allow it, none of the nodes has started, no other node consumes what they
    produce, and other nodes remain.
    """
    begun = {turn.node for turn in state.started}
    return (
        state.began.options.skip_unready
        and begun.isdisjoint(problems)
        and not {*problems, *state.skipped}.issuperset(state.nodes)
        and not _needed(state, problems)
    )


def why_not_ready(state: RolloutState, problems: Mapping[NodeName, str]) -> str:
    """Return the reasons of nodes in one line: each reason once, the most frequent first."""
    alike: dict[str, list[NodeName]] = {}
    for node, why in sorted(problems.items()):
        alike.setdefault(why, []).append(node)
    common = sorted(alike.items(), key=lambda pair: -len(pair[1]))
    reasons = [f"{shown_names(nodes)}: {why}" for why, nodes in common]
    left = sum(len(nodes) for _, nodes in common[SHOWN:])
    more = f"; and {left} more" if left else ""
    if state.began.options.skip_unready and (pairs := _needed(state, problems)):
        more += f"; not left out, because {shown_names(pairs)}"
    return "; ".join(reasons[:SHOWN]) + more


def _needed(state: RolloutState, problems: Collection[NodeName]) -> list[str]:
    pairs = needed({*problems, *state.skipped}, state.began.consumers)
    return [f"{other} consumes what {node} produces" for node, other in pairs]


SHORTEST = 12  # the fewest digits of a digest that an operator may write
_WHERE = "--approve"


def not_approvable(state: RolloutState) -> str:
    """Return why the result of a rollout cannot be approved, one line; empty if it can."""
    if not state.began.options.noop:
        return "was not a rollout with --noop"
    if state.over is None or state.over.ending is not RolloutEnding.DONE:
        return "is still running, or was interrupted"
    incomplete = {
        node: predicted for node, predicted in state.predicted_changes.items() if predicted.whole
    }
    if silent := [node for node in state.nodes if node not in incomplete]:
        many = [node for node in silent if node in state.predicted_changes]
        if many:
            return f"{shown_names(many)} would change too many properties to report"
        return f"{shown_names(silent)} did not report what would change"
    return ""


def approval_of(state: RolloutState) -> Approval | None:
    """Return the approval that a rollout with noop offers; `None` if it cannot be approved."""
    if not_approvable(state):
        return None
    began = state.began
    digest = digest_of(
        began.id, groups=began.groups, tags=began.options.tags, nodes=state.predicted_changes
    )
    return Approval(
        rollout=began.id, digest=digest, salt=began.salt, nodes=dict(state.predicted_changes)
    )


def find(states: Iterable[RolloutState], digest: str) -> tuple[Approval, RolloutBegan]:
    """Return the approval that a digest names, and the first event of that rollout.

    Args:
        states: The rollouts of this machine, the newest first.
        digest: The digest, or at least its first `SHORTEST` digits.

    Raises:
        InvalidInputError: No rollout has the digest, or the digest is too short.
    """
    if len(digest) < SHORTEST or set(digest) - set("0123456789abcdef"):
        raise InvalidInputError(
            f"is not a digest: {SHORTEST} to 64 hexadecimal digits", where=_WHERE
        )
    for state in states:
        approval = approval_of(state)
        if approval is not None and approval.digest.startswith(digest):
            return approval, state.began
    raise InvalidInputError(
        "no noop rollout on this machine has that digest",
        where=_WHERE,
        hint="'localpuppet rollout report ID' prints the digest of a noop rollout",
    )


def refuse_other(approved: RolloutBegan, groups: Groups, options: RolloutOptions) -> None:
    """Reject a rollout that differs from the approved one.

    Raises:
        InvalidInputError: The nodes, their order or the tags differ, or an option contradicts
            `--approve`.
    """
    rollout = approved.id
    if options.noop:
        raise InvalidInputError("--approve and --noop exclude each other")
    if options.delivery is not None:
        raise InvalidInputError(
            f"--release and --approve exclude each other: rollout {rollout} had no release"
        )
    if options.tags != approved.options.tags:
        tags = ", ".join(approved.options.tags) or "no tags"
        raise InvalidInputError(f"rollout {rollout} was approved with {tags}", where="--tags")
    now = [node for group in groups for node in group]
    before = [node for group in approved.groups for node in group]
    if more := sorted({*now} - {*before}):
        raise _other(rollout, f"does not have {shown_names(more)}, selected now")
    if less := sorted({*before} - {*now}):
        raise _other(rollout, f"has {shown_names(less)}, not selected now")
    if groups != approved.groups:
        pairs = zip_longest(groups, approved.groups)
        step = next(step for step, (mine, other) in enumerate(pairs, 1) if mine != other)
        raise _other(rollout, f"has a different order from group {step}")


def _other(rollout: str, what: str) -> InvalidInputError:
    return InvalidInputError(
        f"the approval of rollout {rollout} {what}",
        where=_WHERE,
        hint="run 'localpuppet rollout run --noop' with the same options, and approve its digest",
    )
