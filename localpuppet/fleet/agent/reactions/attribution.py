"""Find the nodes that changed an answer, by comparing two answers node by node.

- A node changed an answer if its part of the answer differs, and it has published an entry since,
  or its entry no longer counts.
- If no node meets both conditions (the bus has restarted its revisions), the nodes whose part
  differs changed the answer.
- If no node's part differs (a count, a query that joins nodes), the nodes that have published an
  entry since changed the answer.
"""

from collections.abc import Callable, Mapping, Set

from localpuppet.fleet.agent.reactions.dependency import AnswerDigest
from localpuppet.fleet.triggers.change import AnswerChange, ChangeKind

# The limit of nodes that are listed for one change of one answer.
MAX_NODES = 256


def changes(
    text: str,
    before: AnswerDigest,
    now: AnswerDigest,
    *,
    since: Set[str],
    counts: Callable[[str], bool],
) -> dict[str, AnswerChange]:
    """Return the nodes that changed an answer, and how: the first `MAX_NODES` by name.

    Args:
        text: The query.
        before: The answer before.
        now: The answer now.
        since: The nodes that have published an entry since.
        counts: Returns whether a node has an entry.
    """
    differ = {
        node: AnswerChange.of(text, how, facts)
        for node in sorted({*before.parts, *now.parts})
        for how, facts in [_difference(before.parts.get(node), now.parts.get(node))]
        if how is not None
    }
    by_them = {node: change for node, change in differ.items() if node in since or not counts(node)}
    by_node = by_them or differ
    if not by_node:
        by_node = {node: AnswerChange.of(text, ChangeKind.ELSEWHERE) for node in sorted(since)}
    return dict(list(by_node.items())[:MAX_NODES])


def _difference(
    before: Mapping[str, str] | None, now: Mapping[str, str] | None
) -> tuple[ChangeKind | None, tuple[str, ...]]:
    if before is None or now is None:
        return (ChangeKind.JOINED if before is None else ChangeKind.LEFT), ()
    if not before and now:
        return None, ()  # the earlier record has no parts
    labels = sorted(label for label in {*before, *now} if before.get(label) != now.get(label))
    return (ChangeKind.CHANGED if labels else None), tuple(filter(None, labels))
