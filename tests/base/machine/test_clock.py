"""The clocks of a machine that has slept."""

import subprocess
import sys

from tests.rigs.node import REPOSITORY

READ = """
import time
from localpuppet.base.machine.process_table import seconds_since_boot
print(seconds_since_boot() - time.monotonic())
"""


def test_the_seconds_since_boot_include_those_in_which_the_machine_slept() -> None:
    """In a time namespace, the machine slept for an hour."""
    command = ["unshare", "--time", "--boottime", "3600", "--fork", sys.executable, "-c", READ]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 3599.0
