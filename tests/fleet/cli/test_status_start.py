"""`status` of a node that no other node affected starts without the parts of the fleet."""

import subprocess
import sys
from pathlib import Path

STATUS = """
import sys
from localpuppet.main import main
code = main(["--root", sys.argv[1], "status"])
fleet = sorted(name for name in sys.modules if name.startswith("localpuppet.fleet."))
print(*fleet, sep="\\n", file=sys.stderr)
"""


def test_status_loads_only_settings_and_additions_of_the_fleet(tmp_path: Path) -> None:
    """Each other module makes every `status` of every node slower."""
    done = subprocess.run(
        [sys.executable, "-c", STATUS, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.stderr.split() == [
        "localpuppet.fleet.cli",
        "localpuppet.fleet.cli.additions",
        "localpuppet.fleet.settings",
        "localpuppet.fleet.settings.inventory",
        "localpuppet.fleet.settings.peers",
        "localpuppet.fleet.wiring",
        "localpuppet.fleet.wiring.confirmations",
    ]
    assert done.stdout.startswith("no run yet")
