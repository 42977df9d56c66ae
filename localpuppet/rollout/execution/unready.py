"""Decide whether a rollout can do without nodes that are not ready, and explain why not."""

from collections.abc import Collection, Mapping

from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.text import shown_names
from localpuppet.rollout.execution.selecting import needed
from localpuppet.rollout.execution.state import RolloutState

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
