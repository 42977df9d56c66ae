"""Which nodes made an answer another one, and by what.

Owns: how two answers are compared node by node. Refuses to know: where they come from, and whether
anything follows.

- A node changed an answer when what is told of it is different, and it has said something since the
  answer before, or nothing that it said counts any more.
- Where no node is both (the bus has begun to count anew), those are meant of which something
  different is told.
- Where nothing different is told of any node (a count, a question that joins nodes), those are
  meant that have said something since.
"""

from collections.abc import Callable, Mapping, Set

from localpuppet.fleet.agent.reactions.dependency import Told
from localpuppet.fleet.triggers.change import Change, How

# Nodes that are named for one change of one answer.
MAX_NODES = 256


def changes(
    text: str, before: Told, now: Told, *, since: Set[str], counts: Callable[[str], bool]
) -> dict[str, Change]:
    """Return the nodes that changed an answer, and how; at most `MAX_NODES`, the first by name.

    Args:
        text: The question.
        before: The answer before.
        now: The answer now.
        since: The nodes that have said something since.
        counts: Whether there is an entry of a node.
    """
    differ = {
        node: Change.of(text, how, facts)
        for node in sorted({*before.parts, *now.parts})
        for how, facts in [_difference(before.parts.get(node), now.parts.get(node))]
        if how is not None
    }
    by_them = {node: one for node, one in differ.items() if node in since or not counts(node)}
    found = by_them or differ
    if not found:
        found = {node: Change.of(text, How.ELSEWHERE) for node in sorted(since)}
    return dict(list(found.items())[:MAX_NODES])


def _difference(
    before: Mapping[str, str] | None, now: Mapping[str, str] | None
) -> tuple[How | None, tuple[str, ...]]:
    if before is None or now is None:
        return (How.JOINED if before is None else How.LEFT), ()
    if not before and now:
        return None, ()  # the record before did not say what was told
    labels = sorted(label for label in {*before, *now} if before.get(label) != now.get(label))
    return (How.CHANGED if labels else None), tuple(filter(None, labels))
