"""A run calls its neighbours, which the entry point connects; a node without layers has none."""

from collections.abc import Callable, Mapping

from localpuppet.node.puppet.facts import read_facts
from localpuppet.node.runs.observer import SilentObserver
from localpuppet.node.runs.options import RunOptions
from localpuppet.node.runs.records import RunDirectory
from localpuppet.node.runs.run import Status
from localpuppet.node.wiring.node import Neighbours, NodePorts, NodeWiring
from localpuppet.node.wiring.run import RunWiring
from tests.rigs.node import Node


class RecordingNeighbours(Neighbours):
    """Records the calls."""

    def __init__(self) -> None:
        self.runs: list[tuple[str, bool, object]] = []

    @property
    def variables(self) -> Mapping[str, str]:
        return {"FACTER_neighbour": "web02"}

    def after_run(self, note: Callable[[str], None], run: RunDirectory, status: Status) -> None:
        note("published")
        self.runs.append((run.id, status.good, read_facts(run.public)["neighbour"]))


def apply(node: NodeWiring) -> Status:
    options = RunOptions(noop=False, tags=None, extra=(), timeout=60.0, user="root", cause="a test")
    wiring = RunWiring(node)
    return wiring.supervisor(SilentObserver()).apply(wiring.preparation().prepare(options))


def test_neighbours_are_called_after_a_run_and_add_its_variables(node: Node) -> None:
    neighbours = RecordingNeighbours()
    ports = NodePorts(neighbours=lambda _: neighbours)
    status = apply(NodeWiring(str(node.root), ports=ports))
    assert status.good, status.reason
    assert neighbours.runs == [(status.id, True, "web02")]


def test_the_node_layer_alone_publishes_nothing(node: Node) -> None:
    assert apply(NodeWiring(str(node.root))).good
    assert not (node.state / "inventory").exists()
    node.run("apply")
    assert (node.state / "inventory").exists(), "the entry point connects the fleet"
