"""The entries of other nodes that a node run waits for."""

from dataclasses import replace

from localpuppet.fleet.inventory.outbox import MAX_AWAITED
from localpuppet.rollout.events import (
    ExportDependency,
    NodeResult,
    NodeRun,
    NodeRunEnded,
    from_dict,
    to_dict,
)
from localpuppet.rollout.executing import awaited_by
from localpuppet.rollout.state import RolloutState
from tests.doubles.simulated_loop import run_simulated
from tests.rollout.simulated import (
    Notes,
    SimulatedNodes,
    began,
    carry_out,
    entry_of,
    node,
)

# 1 and 2 produce for 3, which produces for 1, that runs again for it; 4 needs nothing.
FIRST = replace(
    began([1, 2], [3], [1, 4]),
    needs=(
        ExportDependency(producers=(node(1), node(2)), consumers=(node(2), node(3))),
        ExportDependency(producers=(node(3),), consumers=(node(1),)),
    ),
)


def test_a_node_run_waits_only_for_the_producers_that_ran() -> None:
    nodes, notes = SimulatedNodes(producers={node(1), node(2), node(3)}), Notes()
    run_simulated(carry_out(FIRST, nodes, notes))
    assert {turn: set(after) for turn, after in nodes.after.items()} == {
        NodeRun(1, node(1)): set(),
        NodeRun(1, node(2)): set(),
        NodeRun(2, node(3)): {entry_of(NodeRun(1, node(1))), entry_of(NodeRun(1, node(2)))},
        NodeRun(3, node(1)): {entry_of(NodeRun(2, node(3)))},
        NodeRun(3, node(4)): set(),
    }
    assert [from_dict(to_dict(one)) for one in notes.events] == notes.events
    again = RolloutState.of(notes.events)
    assert awaited_by(again, NodeRun(3, node(1))) == (entry_of(NodeRun(2, node(3))),)
    assert awaited_by(again, NodeRun(again.step_back, node(1))) == (), (
        "a node that goes back waits for no other node"
    )


def test_of_many_producers_the_last_ones_are_awaited() -> None:
    makers = tuple(node(number) for number in range(MAX_AWAITED + 5))
    needs = (ExportDependency(producers=makers, consumers=(node(3),)),)
    state = RolloutState(replace(FIRST, groups=(makers, (node(3), node(500))), needs=needs))
    for maker in reversed(makers):
        turn = NodeRun(1, maker)
        end = NodeRunEnded(
            node_run=turn, result=NodeResult.SUCCEEDED, outcome="changed", entry=entry_of(turn)
        )
        state.take(end)
    found = awaited_by(state, NodeRun(2, node(500)))
    assert found == ()
    found = awaited_by(state, NodeRun(2, node(3)))
    assert len(found) == MAX_AWAITED
    assert found[-1].node == node(0)
