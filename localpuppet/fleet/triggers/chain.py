"""Chains: the path along which a run sends its triggers, and where it ends.

Why every chain ends, also with several causes in one run:

1. A path grows by one node with each message, has no node twice, and has at most nine nodes
   (`MAX_HOPS` + 1). So a message has at most eight successors in a row.
2. The path of a message is that of *one* cause of the run, plus this node. A run with the cause `c`
   alone would also send what it sends for `c`; mixing causes adds no path.
3. Only a cause that begins a chain (timer, manual, request: the path `()`) lets a run begin a new
   one, `(me,)`, and that run settles it. A trigger never becomes a beginning: if b's timer
   coincides with a's trigger, b's message to a, `(b,)`, belongs to the timer, and a's answer to it
   ends at b, because b is in its path.

So a chain lasts no longer than its beginning allows, and beginnings come from clocks and people,
not from messages: at most one for each period and node. A crash may repeat a run (its causes were
not settled), with the same paths.
"""

from collections.abc import Iterable

from localpuppet.base.formats.names import NodeName
from localpuppet.base.value import Value
from localpuppet.fleet.triggers.admission import show_path
from localpuppet.fleet.triggers.trigger import MAX_HOPS


class Loop(Value):
    """No trigger is sent because the chain ends here; this is not a failure.

    Attributes:
        reason: One line.
    """

    reason: str


def next_path(
    paths: Iterable[tuple[NodeName, ...]], *, me: NodeName, receiver: NodeName
) -> tuple[NodeName, ...] | Loop:
    """Return the path of a trigger that a run of this node sends to `receiver`.

    It is the shortest path allowed, which leaves most of the chain; the first of equally short
    ones.

    Args:
        paths: The paths of the run's causes (`Batch.paths`); `[()]` for a trigger sent by hand,
            none for a run that must trigger no node.
        me: This node.
        receiver: The node to trigger.
    """
    if receiver == me:
        return Loop(reason=f"the loop ends here: {me} does not trigger itself")
    known = list(paths)
    if not known:
        return Loop(reason="no trigger is sent: the run uses an unreleased work tree")
    free = [path for path in known if receiver not in path and me not in path]
    if not free:
        shown = show_path((*known[0], me))
        more = f" (and of {len(known) - 1} more)" if len(known) > 1 else ""
        return Loop(reason=f"the loop ends here: {receiver} is in the path {shown}{more}")
    shortest = min(free, key=len)
    if len(shortest) > MAX_HOPS:
        path = show_path((*shortest, me))
        return Loop(reason=f"the chain ends here: {MAX_HOPS} hops were made along {path}")
    return (*shortest, me)
