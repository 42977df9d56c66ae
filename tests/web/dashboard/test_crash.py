"""A test kills the dashboard at one system call of its memory after another.

After a restart it has what it had written; what it had not written comes from the bus again, and
is counted once. A bounded sample runs with the tests; `scripts/crash` tries every call
(CRASH_FULL=1).
"""

import re
import shutil
from pathlib import Path

from tests.rigs.crash_points import crash_points, run_under_strace
from tests.web.dashboard.one_memory import NODES, NOW, SECONDS, ends, memory_of, rows
from tests.web.dashboard.past import MOTD, kept

# What SQLite does to the disk; how many of each are tried with the tests.
CALLS = {"pwrite64": 2, "fdatasync": 1, "ftruncate": 1, "unlink": 1}


def attempt(directory: Path, trace: Path, *strace: str) -> tuple[list[str], int]:
    """Let a dashboard write under strace; return its output, and how it ended."""
    module = "tests.web.dashboard.one_memory"
    done = run_under_strace(trace, *strace, module=module, arguments=(str(directory),))
    return done.stdout.split(), done.returncode


def check(directory: Path, told: list[str]) -> None:
    """Check that a restarted dashboard has what it had, and continues."""
    seconds = [int(word) for word in told if word != "pruned"]
    memory = memory_of(directory)
    memory.begin()
    known = {row.node: row for row in kept(memory)}
    last_updated = memory.last_updated()
    written = -1 if last_updated is None else int(last_updated - NOW)
    # The database may have an unconfirmed second, but only as a whole.
    assert written in (len(seconds) - 1, len(seconds))
    assert list(known.values()) == (rows(written) if written >= 0 else [])
    if len(seconds) < SECONDS:
        counted = [len(memory.runs(node, limit=9)) for node in NODES]
        assert counted in ([written + 1] * len(NODES), [written + 2] * len(NODES))
        assert all(run.resources == (MOTD,) for run in memory.runs("b", limit=9))
        assert sum(memory.hours(0).values()) == sum(counted)
        for second in range(SECONDS):
            memory.write_history(ends(second), ())
        assert sum(memory.hours(0).values()) == SECONDS * len(NODES)
        assert len(memory.runs("b", limit=9)) == SECONDS
    memory.close()


def test_a_dashboard_that_is_killed_at_any_write_restarts_with_what_it_had(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    said, code = attempt(tmp_path / "whole", trace, "-e", f"trace={','.join(CALLS)}")
    assert (said, code) == ([*map(str, range(SECONDS)), "pruned"], 0)
    text = trace.read_text()
    killed = 0
    for call, tries in CALLS.items():
        total = len(re.findall(rf"\b{call}\(", text))
        assert total >= tries, (call, total)
        for number in crash_points(total, tries):
            copy = tmp_path / f"{call}{number}"
            said, code = attempt(copy, trace, "-e", f"inject={call}:signal=KILL:when={number}")
            killed += code == -9
            check(copy, said)
            shutil.rmtree(copy)
    assert killed >= sum(CALLS.values())
