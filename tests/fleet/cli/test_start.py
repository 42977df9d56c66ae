"""`status` and `enc` of a lone node load nothing that they do not use.

Each further module makes every start slower: docs/contribute/benchmarks/runs.md.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.rigs.node import Node

LOADED = """
import sys
from localpuppet.main import main
code = main(["--root", *sys.argv[1:]])
print(*sorted(sys.modules), sep="\\n", file=sys.stderr)
"""
# What a start once loaded, and what takes 0.5 to 110 ms to load.
HEAVY = {
    *("yaml", "jsonschema", "sh", "rich", "ssl", "asyncio", "subprocess", "tempfile", "logging"),
    *("secrets", "shutil", "click.shell_completion", "localpuppet.web.web_settings"),
    "localpuppet.node.puppet.command_line",
}
HEAVY_FOR_STATUS = {
    *("localpuppet.node.releases.git.access", "localpuppet.node.releases.git.git_names"),
    *("localpuppet.node.puppet.environment", "localpuppet.base.machine.processes"),
    *("localpuppet.node.runs.options", "localpuppet.node.runs.verdict"),
}
HEAVY_FOR_ENC = {
    *("localpuppet.base.machine.ports", "localpuppet.base.machine.processes"),
    *("localpuppet.node.enc.site_command", "localpuppet.node.runs.run"),
}


def loaded(root: Path, verb: str) -> tuple[str, set[str]]:
    """Return the output of a command, and the modules of its process."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED, str(root), verb], capture_output=True, text=True, check=True
    )
    return done.stdout, set(done.stderr.split())


def test_status_loads_only_the_additions_of_the_fleet(tmp_path: Path) -> None:
    out, modules = loaded(tmp_path, "status")
    assert sorted(name for name in modules if name.startswith("localpuppet.fleet.")) == [
        "localpuppet.fleet.cli",
        "localpuppet.fleet.cli.additions",
    ]
    assert out.startswith("no run yet")


@pytest.mark.parametrize(
    ("verb", "heavy"), [("status", HEAVY | HEAVY_FOR_STATUS), ("enc", HEAVY | HEAVY_FOR_ENC)]
)
def test_a_start_loads_nothing_heavy(node: Node, verb: str, heavy: set[str]) -> None:
    node.settings()
    node.app("")
    node.run("enc")  # remembers the documents
    _, modules = loaded(node.root, verb)
    assert sorted(modules & heavy) == []
