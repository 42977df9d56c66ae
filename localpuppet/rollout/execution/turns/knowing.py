"""Which entries of other nodes a turn waits for: a consumer is to know of its producers' runs.

Owns: of which nodes, and how many. Refuses to know: how a node waits (`triggers.steps`).

- A node waits for those that produce what its components declare to consume, as far as they ran in
  this rollout and told of an entry since; what nodes only ask of each other can do without.
- Of more than `MAX_AWAITED` it waits for those that ended last: entries come to a view in the order
  in which the bus has them.
- Who goes back to what they ran before waits for nobody.
"""

from localpuppet.fleet.inventory.awaited import MAX_AWAITED, Awaited
from localpuppet.rollout.execution.events import Turn
from localpuppet.rollout.execution.state import State


def awaited_by(state: State, turn: Turn) -> tuple[Awaited, ...]:
    """Return the entries that a turn waits for, that of the node that ended last at the end."""
    if turn.step == state.step_back:
        return ()
    makers = state.makers_for(turn.node)
    found: list[Awaited] = []
    for node, entry in reversed(state.entries.items()):
        if node != turn.node and any(node in some for some in makers):
            found.append(entry)
        if len(found) == MAX_AWAITED:
            break
    return tuple(reversed(found))
