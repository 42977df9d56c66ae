"""Choose the inventory entries that a node run waits for: a consumer needs its producers' entries.

- A node waits for the nodes that produce what its components declare to consume, if these ran in
  this rollout and reported an entry. Derived relations (queries) do not count.
- Of more than `MAX_AWAITED` entries it waits for those of the nodes that ended last: views receive
  entries in the order of the bus.
- A rollback run waits for no entries.
"""

from localpuppet.fleet.inventory.awaited_entry import MAX_AWAITED, AwaitedEntry
from localpuppet.rollout.execution.events import NodeRun
from localpuppet.rollout.execution.state import RolloutState


def awaited_by(state: RolloutState, turn: NodeRun) -> tuple[AwaitedEntry, ...]:
    """Return the entries that a node run waits for, in the order in which their nodes ended."""
    if turn.step == state.step_back:
        return ()
    makers = state.makers_for(turn.node)
    entries: list[AwaitedEntry] = []
    for node, entry in reversed(state.entries.items()):
        if node != turn.node and any(node in some for some in makers):
            entries.append(entry)
        if len(entries) == MAX_AWAITED:
            break
    return tuple(reversed(entries))
