"""A dashboard that writes its memory; a test kills it.

`python -m tests.web.dashboard.one_memory DIR` tells the number of each second that is on the disk.
With `convert` behind it, it only opens a memory of an earlier format.
"""

import sys
from pathlib import Path

from localpuppet.fleet.history.history_records import DAY
from localpuppet.fleet.inventory.presence import NodeRow
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.web.dashboard.memory import DashboardStore, MemoryLimits
from localpuppet.web.dashboard.run_table import RunRow
from tests.fleet.make import a_row
from tests.web.make import MOTD, keep, summary

NOW = 1_795_000_000.0
SECONDS = 4
NODES = ("a", "b", "c")


def memory_of(directory: Path, *, now: float = NOW) -> DashboardStore:
    return DashboardStore(
        directory / "web" / "fleet.sqlite", now=lambda: now, limits=MemoryLimits(together=2)
    )


def rows(second: int) -> list[NodeRow]:
    return [a_row(node, reason=f"in second {second}", finished_at=NOW + second) for node in NODES]


def ends(second: int) -> list[RunRow]:
    at = NOW + second - DAY
    own = {"outcome": Kind.FAILED, "failure_cause": "f", "resources": (MOTD,)}
    return [summary(node, at, reason="b", **own) for node in NODES]


def tell(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def main() -> None:
    memory = memory_of(Path(sys.argv[1]))
    memory.begin()
    if sys.argv[2:] == ["convert"]:
        tell("converted")
        memory.close()
        return
    for second in range(SECONDS):
        memory.write_history(ends(second), ())
        keep(memory, *rows(second), last_updated=NOW + second)
        tell(str(second))
    later = memory_of(Path(sys.argv[1]), now=NOW + 92 * DAY)
    while later.prune():
        pass
    tell("pruned")


if __name__ == "__main__":
    main()
