"""Decide what a rollout does: its nodes, what is next, and what would exceed its deadline.

- Groups run one after the other: a group starts when the previous group has no node run left.
- The canaries of a group (its first nodes by name) are a closed batch before the others. If one
  fails, the rollout ends.
- If nodes have places, a group goes through its places in name order: its canaries first, then
  batches or a window within each place.
- A batch is closed: when all its runs have ended, the nodes are checked, then the next batch
  starts. A window advances with each node that has ended and passed its checks.
- If failures pause the rollout, nothing starts until an operator continues it. That accepts the
  failures so far; the next failure beyond the limit pauses it again.
- If a node would change something that was not approved, nothing starts until an operator
  approves that or stops the rollout. Running nodes finish; waiting ones count as not reached.
- `max_failures` counts failed and unresponsive nodes over the whole rollout, canaries too, each
  once. Beyond it no node run starts; running ones finish and are checked.
- If failures roll the release back, the nodes that may have taken it go back when no run is left,
  the last group first. An unresponsive node delays no other.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from datetime import datetime, timedelta
from itertools import zip_longest
from types import MappingProxyType

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.text import one_line, shown_names
from localpuppet.base.formats.times import show_duration
from localpuppet.base.formats.values import Json
from localpuppet.base.value import Value
from localpuppet.rollout import events
from localpuppet.rollout.plan import Plan
from localpuppet.rollout.rollout_options import (
    MAX_ALL,
    Approval,
    OnFailure,
    PauseAfter,
    RolloutOptions,
    digest_of,
)
from localpuppet.rollout.site import Check
from localpuppet.rollout.state import RolloutState


class NextAction(Value):
    """What the rollout does now."""

    start: tuple[events.NodeRun, ...] = ()
    # Start the checks of these node runs, unless they have started.
    check: tuple[events.NodeRun, ...] = ()
    pause: events.RolloutPaused | None = None
    stop: str = ""  # record that no further nodes start, for this reason; empty for no stop
    # Record that these node runs, although started, will not happen.
    withdraw: tuple[events.NodeRun, ...] = ()
    over: bool = False  # whether nothing is running and nothing will start


def decide(state: RolloutState) -> NextAction:
    if state.stopped is not None or state.goes_back:
        return _ending(state)
    if state.paused is not None:
        return NextAction(check=tuple(state.unchecked))
    if sum(predicted.total for predicted in state.predicted_changes.values()) > MAX_ALL:
        why = f"the nodes would change more than {MAX_ALL} properties (select fewer nodes)"
        return NextAction(stop=why)
    if why := too_much(state):
        if state.began.options.on_failure is OnFailure.PAUSE:
            return NextAction(pause=events.RolloutPaused(reason=why))
        return NextAction(stop=why)
    if state.differing:
        turn = min(state.differing)
        why = f"{turn.node} {state.differing[turn].reason}"
        return NextAction(pause=events.RolloutPaused(reason=why, needs_approval=True))
    for step in range(1, len(state.began.groups) + 1):
        turns = state.turns(step)
        if not all(state.settled(turn) for turn in turns):
            due = _due(state, turns)
            pause = _pause(state, step, turns) if due.start else None
            return due if pause is None else NextAction(pause=pause)
    return NextAction(over=not state.running)


def _ending(state: RolloutState) -> NextAction:
    """Return the next action of a rollout that starts no further nodes."""
    if state.differing:
        return NextAction(withdraw=tuple(sorted(state.differing)))
    check = tuple(state.unchecked)
    if check or any(turn.step != state.step_back for turn in state.running):
        return NextAction(check=check)
    return _back(state) if state.goes_back else NextAction(over=True)


def _back(state: RolloutState) -> NextAction:
    """Return the nodes that go back now, after all other runs have ended."""
    unresponsive = {
        node for node, end in state.failed.items() if end.result is events.NodeResult.UNRESPONSIVE
    }
    took = state.took
    for step in sorted(set(took.values()), reverse=True):
        turns = [
            events.NodeRun(state.step_back, node) for node, last in took.items() if last == step
        ]
        start = tuple(turn for turn in turns if turn not in state.started)
        if start:
            return NextAction(start=start)
        if any(turn not in state.ends and turn.node not in unresponsive for turn in turns):
            return NextAction()
    return NextAction(over=not state.running)


def too_much(state: RolloutState) -> str:
    """Return why failures end or pause the rollout; empty if they do not."""
    canary = state.began.options.canary
    new = {node: end for node, end in state.failed.items() if node not in state.accepted}
    for node, end in sorted(new.items()):
        if canary and end.node_run in state.turns(end.node_run.step)[:canary]:
            verb = "is " if end.result is events.NodeResult.UNRESPONSIVE else ""
            return f"{node}, a canary, {verb}{end.result}"
    failed = len(state.failed)
    if new and failed > state.allowed:
        nodes = "1 node" if failed == 1 else f"{failed} nodes"
        return f"{nodes} failed; {state.allowed or 'none'} may fail"
    return ""


def _pause(
    state: RolloutState, step: int, turns: Sequence[events.NodeRun]
) -> events.RolloutPaused | None:
    """Return the pause that is due before more nodes of a group start; `None` for none."""
    options = state.began.options
    begun = [turn for turn in turns if turn in state.started]
    why = ""
    if not begun:
        if PauseAfter.GROUPS in options.pause and state.started:
            why = f"before group {step}, as requested"
    elif PauseAfter.CANARIES in options.pause and begun == list(turns[: options.canary]):
        why = f"after the canaries of group {step}, as requested"
    return events.RolloutPaused(reason=why, point=why) if why and why not in state.passed else None


def _due(state: RolloutState, turns: Sequence[events.NodeRun]) -> NextAction:
    """Return the next action in a group that is not over."""
    canary = state.began.options.canary
    for canaries in state.sections(turns[:canary]):
        if not all(state.settled(turn) for turn in canaries):
            return _closed(state, canaries)
    for others in state.sections(turns[canary:]):
        if not all(state.settled(turn) for turn in others):
            return _some(state, others, total=len(turns))
    return NextAction()


def _some(state: RolloutState, others: Sequence[events.NodeRun], *, total: int) -> NextAction:
    """Return the next action for runs that may be parallel, in a group of `total` nodes."""
    options = state.began.options
    if options.window is not None:
        on = sum(turn in state.started and not state.settled(turn) for turn in others)
        waiting = [turn for turn in others if turn not in state.started]
        return NextAction(
            start=tuple(waiting[: max(options.window - on, 0)]),
            check=tuple(turn for turn in others if turn in state.ends and not state.settled(turn)),
        )
    for batch in _batches(options, others, total=total):
        if not all(state.settled(turn) for turn in batch):
            return _closed(state, batch)
    return NextAction()


def _batches(
    options: RolloutOptions, turns: Sequence[events.NodeRun], *, total: int
) -> list[Sequence[events.NodeRun]]:
    """Return runs in batches that follow each other; without batches, all in one."""
    size = len(turns) if options.batch is None else max(options.batch.of(total), 1)
    return [turns[start : start + size] for start in range(0, len(turns), size)]


def _closed(state: RolloutState, batch: Sequence[events.NodeRun]) -> NextAction:
    """Return the next action in a batch that is not over: all run, then all are checked."""
    if not all(turn in state.ends for turn in batch):
        return NextAction(start=tuple(turn for turn in batch if turn not in state.started))
    return NextAction(check=tuple(turn for turn in batch if not state.settled(turn)))


def late(state: RolloutState, turns: Collection[events.NodeRun], now: datetime) -> str:
    """Return why node runs may not start any more, one line; empty if they may.

    They are late if the longest of their nodes' last good runs, started now, would end after the
    deadline. A node without a good run counts as zero.
    """
    until = state.until
    if until is None or not turns:
        return ""
    shown = until.strftime("%Y-%m-%d %H:%M UTC")
    if now >= until:
        return f"it is {shown}"
    last = {turn.node: state.durations.get(turn.node, (0.0,))[0] for turn in turns}
    node = max(sorted(last), key=last.__getitem__)
    if now + timedelta(seconds=last[node]) <= until:
        return ""
    return (
        f"the last run of {node} took {show_duration(last[node])}, which is longer than to {shown}"
    )


MAX_CHECKS = 100  # of one node run
MAX_TITLE = 100
MAX_PLACE = 255

Groups = tuple[tuple[NodeName, ...], ...]
Consumers = Mapping[NodeName, tuple[NodeName, ...]]
Checks = tuple[Check, ...]


class RolloutSelection(Value):
    """The nodes that a rollout selects, their order and their checks."""

    groups: Groups
    title: str
    # Node run → its checks; runs without any are missing.
    checks: Mapping[events.NodeRun, Checks] = field(default_factory=dict)
    # What components consume, as far as nodes of the site produce it.
    needs: tuple[events.ExportDependency, ...] = ()


def of_plan(plan: Plan) -> RolloutSelection:
    """Return the selection of a plan, which must have a node."""
    return RolloutSelection(
        groups=refuse_none(
            tuple(tuple(sorted(run.node for run in group)) for group in plan.groups)
        ),
        title=_title(", ".join(_applications(plan))),
        checks=checks_of(plan),
        needs=needs_of(plan),
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
    """Return the place of each node, from the values of a fact; each must have a single value."""
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
    """Return a selection of nodes, at least one, without an order, as one group."""
    return RolloutSelection(groups=refuse_none((tuple(sorted(nodes)),)), title=_title(title))


def _title(text: str) -> str:
    return one_line(text)[:MAX_TITLE]


def refuse_none(groups: Groups) -> Groups:
    """Return the groups if they have nodes: a selection without a match is an error."""
    if not any(groups):
        raise InvalidInputError("the selection matches no node")
    return groups


def needs_of(plan: Plan) -> tuple[events.ExportDependency, ...]:
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
        events.ExportDependency(producers=tuple(sorted(makers)), consumers=users)
        for users, makers in together.items()
    )


def consumers_of(needs: Sequence[events.ExportDependency]) -> Consumers:
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


def checks_of(plan: Plan) -> dict[events.NodeRun, Checks]:
    """Return node run → the checks of its components, at most `MAX_CHECKS`; without empty ones."""
    by_run: dict[events.NodeRun, Checks] = {}
    for run in plan.runs:
        checks = dict.fromkeys(check for component in run.components for check in component.checks)
        if len(checks) > MAX_CHECKS:
            raise InvalidInputError(
                f"{len(checks)} checks follow a run of {run.node}; at most {MAX_CHECKS} are allowed"
            )
        if checks:
            by_run[events.NodeRun(run.group, run.node)] = tuple(checks)
    return by_run


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
        and not needed({*problems, *state.skipped}, state.began.consumers)
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
    pairs = needed({*problems, *state.skipped}, state.began.consumers)
    if state.began.options.skip_unready and pairs:
        more += f"; not left out, because {shown_names(pairs)}"
    return "; ".join(reasons[:SHOWN]) + more


def needed(left_out: Collection[NodeName], consumers: Consumers) -> list[str]:
    """Return which nodes that take part depend on nodes that are left out, a text for each."""
    return [
        f"{other} consumes what {node} produces"
        for node in sorted(left_out)
        for other in consumers.get(node, ())
        if other not in left_out
    ]


SHORTEST = 12  # the fewest digits of a digest that an operator may write
_WHERE = "--approve"


def not_approvable(state: RolloutState) -> str:
    """Return why the result of a rollout cannot be approved, one line; empty if it can."""
    if not state.began.options.noop:
        return "was not a rollout with --noop"
    if state.over is None or state.over.ending is not events.RolloutEnding.DONE:
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


def find(states: Iterable[RolloutState], digest: str) -> tuple[Approval, events.RolloutBegan]:
    """Return the approval that a digest, or its begin, names, and its rollout's first event."""
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


def refuse_other(approved: events.RolloutBegan, groups: Groups, options: RolloutOptions) -> None:
    """Reject a rollout whose nodes, order, tags or options differ from the approved one."""
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


def seconds_left(state: RolloutState) -> float | None:
    """Return the estimated seconds until the last node run ends; `None` if unknown.

    Each node counts with the median of its last good runs; pauses and checks count zero. The
    estimate is unknown if a node has no such run, or if the rollout is paused or stopped.
    """
    if state.stopped is not None or state.paused is not None:
        return None
    total = 0.0
    for step in range(1, len(state.began.groups) + 1):
        left = [turn for turn in state.turns(step) if turn not in state.ends]
        if any(turn.node not in state.usual for turn in left):
            return None
        total += _seconds_of_group(state, step, left)
    return total


def _seconds_of_group(state: RolloutState, step: int, left: Sequence[events.NodeRun]) -> float:
    """Return the estimated seconds for the rest of a group."""
    turns = state.turns(step)
    canaries = set(turns[: state.began.options.canary])
    first = state.sections([turn for turn in left if turn in canaries])
    others = state.sections([turn for turn in left if turn not in canaries])
    return sum(_longest(state, part) for part in first) + sum(
        _seconds_of(state, part, total=len(turns)) for part in others
    )


def _seconds_of(state: RolloutState, turns: Sequence[events.NodeRun], *, total: int) -> float:
    """Return the seconds for runs that may be parallel, in a group of `total` nodes."""
    options = state.began.options
    if options.window is not None:
        work = sum(state.usual[turn.node] for turn in turns)
        return max(_longest(state, turns), work / options.window)
    return sum(_longest(state, batch) for batch in _batches(options, turns, total=total))


def _longest(state: RolloutState, turns: Sequence[events.NodeRun]) -> float:
    return max(state.usual[turn.node] for turn in turns)


LONG = 10  # seconds by which a node run may exceed its usual duration


def time_left(
    state: RolloutState, on: Mapping[events.NodeRun, float] = MappingProxyType({})
) -> str:
    """Return the estimated time until the end, in words; empty if nothing further starts.

    `on` has the seconds for which node runs have been running, as far as known.
    """
    if state.over is not None or state.stopped is not None or state.paused is not None:
        return ""
    usual = state.usual
    if any(seconds > usual.get(turn.node, seconds) + LONG for turn, seconds in on.items()):
        return "longer than usual"
    left = seconds_left(state)
    return "time left unknown" if left is None else f"about {show_duration(left)} left"
