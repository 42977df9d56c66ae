"""What an agent keeps in memory: nothing that only the first reading of its settings needs."""

import subprocess
import sys
from pathlib import Path

READ = """
import sys
from localpuppet.cli.agent_run import learn
from localpuppet.cli.fleet import FleetParts
from localpuppet.cli.wiring import Parts
learn(sys.argv[1])
fleet = FleetParts(Parts(sys.argv[1]))
print(fleet.settings.bus.engine, fleet.node)
print(sorted({"yaml", "jsonschema", "sh"} & set(sys.modules)))
"""


def read(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", READ, str(root)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_new_settings_are_read_without_what_only_reading_them_needs(tmp_path: Path) -> None:
    (tmp_path / "localpuppet.yaml").write_text("node: web01.example.com\nbus: sqlite\n")
    done = read(tmp_path)
    assert done.stdout == "sqlite web01.example.com\n[]\n", done.stderr


def test_what_is_wrong_with_them_is_said_once(tmp_path: Path) -> None:
    (tmp_path / "localpuppet.yaml").write_text("node: web01.example.com\nbus: carrier-pigeon\n")
    done = read(tmp_path)
    assert done.stdout == ""
    assert done.stderr.count("InvalidInputError") == 1
