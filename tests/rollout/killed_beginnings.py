"""Journals whose processes are killed while they make them: `python -m …killed_beginnings DIR WAY`.

In `DIR/N` a process is killed just before it changes names of files for the Nth time, until one
process reaches its end: the state on disk changes only with names.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from localpuppet.base.formats.names import RolloutId
from localpuppet.rollout.events import Event, LastRunsReported
from localpuppet.rollout.journal import Journals
from tests.rollout.make import AT, ID, began

BEGAN = began([1, 2])
ELSEWHERE: list[tuple[str, Event]] = [(AT, BEGAN), (AT, LastRunsReported(durations={}))]
MOST = 100
_NAMES = ("open", "sqlite3.connect", "os.mkdir", "os.link", "os.rename", "os.remove")


def begin(journals: Journals) -> None:
    journals.begin(BEGAN, at=AT).close()


def take_over(journals: Journals) -> None:
    journal = journals.take(RolloutId(ID))
    journal.replace(ELSEWHERE)
    journal.close()


def forget(journals: Journals) -> None:
    """Remove a journal that was made before the first kill."""
    journals.open(ID).remove()


WAYS: dict[str, Callable[[Journals], None]] = {
    "begin": begin,
    "take over": take_over,
    "forget": forget,
}


def attempt(directory: Path, way: str, kill_at: int) -> bool:
    """Return whether a process that is to be killed then was."""
    journals = Journals(directory)
    if way == "forget":
        journals.begin(BEGAN, at=AT).close()
    child = os.fork()
    if child == 0:
        left = kill_at

        def audit(event: str, _: tuple[object, ...]) -> None:
            nonlocal left
            if event in _NAMES:
                left -= 1
                if not left:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(audit)
        WAYS[way](journals)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), status
    return status != 0


def main() -> None:
    directory, way = Path(sys.argv[1]), sys.argv[2]
    number = 1
    while number < MOST and attempt(directory / str(number), way, number):
        number += 1


if __name__ == "__main__":
    main()
