"""The memory of the fleet outlives a kill at any write."""

import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from tests.rigs.crash_points import crash_points, run_under_strace
from tests.web.dashboard.one_memory import NODES, NOW, SECONDS, ends, memory_of, rows
from tests.web.dashboard.test_history_tables import write_format_9
from tests.web.make import MOTD, kept

# What SQLite does to the disk; how many of each are tried with the tests.
CALLS = {"pwrite64": 2, "fdatasync": 1, "ftruncate": 1, "unlink": 1}


def attempt(directory: Path, trace: Path, *strace: str, do: str = "") -> tuple[list[str], int]:
    """Let a dashboard write, or do something else, under strace; return output and exit code."""
    module = "tests.web.dashboard.one_memory"
    arguments = (str(directory), *filter(None, [do]))
    done = run_under_strace(trace, *strace, module=module, arguments=arguments)
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


def test_a_kill_during_a_conversion_leaves_the_old_memory_or_the_new_one(tmp_path: Path) -> None:
    def convert(name: str, *strace: str) -> tuple[int, int, list[str]]:
        """Convert a memory; return the exit code, and format and tables of the file."""
        file = tmp_path / name / "web" / "fleet.sqlite"
        file.parent.mkdir(parents=True, mode=0o700)
        write_format_9(file)
        code = attempt(tmp_path / name, trace, *strace, do="convert")[1] if strace else 0
        with closing(sqlite3.connect(file)) as connection:
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            tables = connection.execute("SELECT sql FROM sqlite_master WHERE sql <> ''")
            return code, version, sorted(sql for (sql,) in tables)

    trace, calls = tmp_path / "trace", {"pwrite64": 4, "fdatasync": 2}
    old, new = convert("old"), convert("new", "-e", f"trace={','.join(calls)}")
    assert old[1] == 9 < new[1]
    text, versions = trace.read_text(), set()
    for call, tries in calls.items():
        total = len(re.findall(rf"\b{call}\(", text))
        assert total >= tries, (call, total)
        for number in crash_points(total, tries):
            name = f"{call}{number}"
            code, *form = convert(name, "-e", f"inject={call}:signal=KILL:when={number}")
            assert code == -9
            assert form in ([*old[1:]], [*new[1:]]), name
            versions.add(form[0])
            memory = memory_of(tmp_path / name)
            memory.begin()
            assert len(memory.runs("a", limit=9)) == 3
            memory.close()
    assert versions == {old[1], new[1]}
