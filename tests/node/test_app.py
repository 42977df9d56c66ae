"""The parts of a node: a run calls its neighbours, and records are opened without a run."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from localpuppet.node.app import NodeApp, NodePorts
from localpuppet.node.node_ports import Neighbours
from localpuppet.node.puppet.report import read_facts
from localpuppet.node.runs.observer import NoteObserver
from localpuppet.node.runs.options import RunOptions
from localpuppet.node.runs.run import Status
from localpuppet.node.runs.run_records import RunDirectory
from tests.rigs.node import Node

READ = """
import sys
from localpuppet.node.app import NodeApp
print(NodeApp(sys.argv[1]).records.ids())
print("localpuppet.base.machine.processes" in sys.modules)
"""


class RecordingNeighbours(Neighbours):
    def __init__(self) -> None:
        self.runs: list[tuple[str, bool, object]] = []

    @property
    def variables(self) -> Mapping[str, str]:
        return {"FACTER_neighbour": "web02"}

    def after_run(self, note: Callable[[str], None], run: RunDirectory, status: Status) -> None:
        note("published")
        self.runs.append((run.id, status.good, read_facts(run.public)["neighbour"]))


def apply(node: NodeApp) -> Status:
    options = RunOptions(noop=False, tags=None, extra=(), timeout=60.0, user="root", cause="a test")
    return node.supervisor(NoteObserver()).apply(node.preparation().prepare(options))


def test_neighbours_are_called_after_a_run_and_add_its_variables(node: Node) -> None:
    neighbours = RecordingNeighbours()
    ports = NodePorts(neighbours=lambda _: neighbours)
    status = apply(NodeApp(str(node.root), ports=ports))
    assert status.good, status.reason
    assert neighbours.runs == [(status.id, True, "web02")]


def test_the_node_layer_alone_publishes_nothing(node: Node) -> None:
    assert apply(NodeApp(str(node.root))).good
    assert not (node.state / "inventory").exists()
    node.run("apply")
    assert (node.state / "inventory").exists(), "the entry point connects the fleet"


def test_records_are_read_without_the_module_that_starts_processes(tmp_path: Path) -> None:
    """The import would delay `status`."""
    done = subprocess.run(
        [sys.executable, "-c", READ, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.stdout == "[]\nFalse\n", done.stderr
