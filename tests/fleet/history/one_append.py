"""Begin a log and append to it, as a separate process that a test kills."""

import sys
from pathlib import Path

from localpuppet.base.errors import StateError
from localpuppet.fleet.history.history_records import DAY, RUNS
from localpuppet.fleet.history.node_history import DayLog
from tests.fleet.make import NODE, a_summary, noon


def main(state: Path) -> None:
    log = DayLog(state, RUNS)
    log.begin(NODE, [a_summary(noon() - DAY), a_summary(noon())])
    log.append(NODE, a_summary(noon(1)))


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except StateError as error:
        sys.exit(str(error))
