"""The records of a node are opened without the modules of a run."""

import subprocess
import sys
from pathlib import Path

READ = """
import sys
from localpuppet.node.wiring.node import NodeWiring
from localpuppet.node.wiring.state import open_records
print(open_records(NodeWiring(sys.argv[1])).ids())
print("localpuppet.base.machine.processes" in sys.modules)
"""


def test_records_are_read_without_the_module_that_starts_processes(tmp_path: Path) -> None:
    """The import would delay `status`."""
    done = subprocess.run(
        [sys.executable, "-c", READ, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.stdout == "[]\nFalse\n", done.stderr
