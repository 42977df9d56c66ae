"""Chains: along which path a run sends its triggers on, and where that ends.

Owns: the rule by which every chain ends. Refuses to know: who may trigger whom, and how.

Why every chain ends, also where causes are mixed in one run:

1. A path grows by one node with each message, names no node twice and has at most nine
   (`MAX_HOPS` + 1). So a message has at most eight successors, one behind the other.
2. A message's path is that of *one* cause of the run, and this node. What a run sends for the
   cause `c` it would also have sent if it had had `c` alone; mixing causes adds no path.
3. Only a cause that is itself the beginning of a chain (timer, manual, request: the path `()`)
   lets a run begin a new one, `(me,)`. It is settled by that run. A trigger never turns into a
   beginning: where b's timer falls together with a's trigger, b's message to a, `(b,)`, belongs to
   the timer, and a's answer to it ends at b, because b is in its path.

So a chain lasts no longer than its own beginning allows, and new beginnings come from clocks and
people, not from messages: at most one a period and node. A crash may repeat a run (its causes were
not settled), with the same paths.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.triggers.admission import show_path
from localpuppet.fleet.triggers.trigger import MAX_HOPS


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """Nothing is sent: the chain ends here. Not a failure.

    Attributes:
        reason: One line.
    """

    reason: str


def next_path(
    paths: Iterable[tuple[NodeName, ...]], *, me: NodeName, receiver: NodeName
) -> tuple[NodeName, ...] | Loop:
    """Return the path of a trigger that a run of mine sends to `receiver`.

    Of several that are allowed the shortest is taken, so that as much of the chain as can be is
    left; of equally short ones the first.

    Args:
        paths: Those of the run's causes (`Batch.paths`); `[()]` for a trigger sent by hand, none
            for a run that may not trigger anybody.
        me: This node.
        receiver: The one that is to run.
    """
    if receiver == me:
        return Loop(reason=f"the loop ends here: {me} does not trigger itself")
    known = list(paths)
    if not known:
        return Loop(reason="nothing is sent: the run tries a work tree")
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
