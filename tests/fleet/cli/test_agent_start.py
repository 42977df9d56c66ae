"""What an agent keeps in memory, and what a run loads before Puppet: only what each needs."""

import subprocess
import sys
from pathlib import Path

import pytest

READ = """
import sys
from localpuppet.fleet.app import FleetApp
from localpuppet.fleet.cli.agent import fill_settings_cache
from localpuppet.node.app import NodeApp
fill_settings_cache(FleetApp(NodeApp(sys.argv[1])))
fleet = FleetApp(NodeApp(sys.argv[1]))
print(fleet.settings.bus.engine, fleet.name)
print(sorted({"yaml", "jsonschema", "sh"} & set(sys.modules)))
"""


def read(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", READ, str(root)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.server
def test_settings_are_read_without_loading_their_parsers(tmp_path: Path) -> None:
    (tmp_path / "localpuppet.yaml").write_text("node: web01.example.com\nbus: sqlite\n")
    done = read(tmp_path)
    assert done.stdout == "sqlite web01.example.com\n[]\n", done.stderr


def test_supervising_a_run_and_leaving_its_entry_loads_no_module_of_the_bus() -> None:
    """Importing asyncio and ssl takes 30 ms, for which each run would have to wait."""
    modules = "localpuppet.node.app, localpuppet.fleet.neighbours"
    modules += ", localpuppet.fleet.publishing, localpuppet.fleet.inventory.outbox"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, {modules}; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "localpuppet.fleet.publishing" in done.stdout
    assert not {"asyncio", "ssl", "sqlite3"} & set(done.stdout.split())


def test_an_error_in_the_settings_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "localpuppet.yaml").write_text("node: web01.example.com\nbus: carrier-pigeon\n")
    done = read(tmp_path)
    assert done.stdout == ""
    assert done.stderr.count("InvalidInputError") == 1
