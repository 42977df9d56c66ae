"""Closes the record of a good run and prunes, in a process that its test kills at a system call.

python -m tests.node.runs.one_good_run DIRECTORY RELEASE
"""

import sys
from pathlib import Path

from localpuppet.base.errors import StateError
from tests.rigs.recorded import Recorded


def run(directory: Path, app: str) -> None:
    """Do what a supervisor does after the end of its run."""
    site = Recorded(directory)
    try:
        status = site.ran(app)
        site.good_runs.keep(status)
        site.records.prune(runs=1, days=90, keep=status.id, before=site.good_runs.keep)
    except StateError as error:
        sys.stdout.write(f"{error}\n")


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2])
