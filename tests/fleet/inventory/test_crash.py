"""A test kills the owner of a view at one system call after another.

The view then opens, and is what it was before or after the step that was interrupted: tombstones
and times of entries never go back. A bounded sample runs with the tests; `scripts/crash` tries
every call (CRASH_FULL=1).
"""

import re
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from localpuppet.base.formats.names import NodeName
from tests.fleet.inventory.one_view import PARTS, STEPS, TOGETHER, WEB, content, view_of
from tests.rigs.crash_points import crash_points, run_under_strace

# What SQLite does to the disk; how many of each are tried with the tests.
CALLS = {"pwrite64": 8, "fdatasync": 6, "ftruncate": 1, "unlink": 1}


def attempt(directory: Path, trace: Path, *strace: str, do: str = "") -> tuple[list[str], int]:
    """Let a view take messages, or convert itself, under strace; return output and exit code."""
    module, arguments = "tests.fleet.inventory.one_view", (str(directory), *filter(None, [do]))
    done = run_under_strace(trace, *strace, module=module, arguments=arguments)
    return done.stdout.split(), done.returncode


def found_in(directory: Path) -> str:
    file = directory / "state" / "view.sqlite"
    if not file.exists():
        return ""
    with closing(view_of(directory)) as view:
        view.current_until()  # opens it as the agent does
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return content(connection)


def states(directory: Path) -> list[set[str]]:
    """Return what a view may have after each number of steps, also during the next one."""
    after: list[set[str]] = []
    with closing(view_of(directory)) as view:
        view.current_until()
        for number, step in enumerate(STEPS):
            after.append({found_in(directory)})
            if number in PARTS:
                # One transaction of two; the revision follows with the last one.
                view.take(PARTS[number]()[:TOGETHER])
                after[-1].add(found_in(directory))
            step(view)
    return [*after, {found_in(directory)}]


def test_a_view_that_is_killed_at_any_write_has_its_messages_and_continues(tmp_path: Path) -> None:
    trace, allowed = tmp_path / "trace", states(tmp_path / "allowed")
    said, code = attempt(tmp_path / "whole", trace, "-e", f"trace={','.join(CALLS)}")
    assert (said, code) == ([*map(str, range(len(STEPS)))], 0)
    assert {found_in(tmp_path / "whole")} == allowed[-1]
    text, killed = trace.read_text(), 0
    for call, tries in CALLS.items():
        total = len(re.findall(rf"\b{call}\(", text))
        assert total >= tries, (call, total)
        for number in crash_points(total, tries):
            copy = tmp_path / f"{call}{number}"
            said, code = attempt(copy, trace, "-e", f"inject={call}:signal=KILL:when={number}")
            killed += code == -9
            begun = len(said)
            assert found_in(copy) in {"", *allowed[0]}.union(*allowed[begun : begun + 2]), number
            with closing(view_of(copy)) as view:
                for step in STEPS[begun:]:
                    step(view)
            assert {found_in(copy)} == allowed[-1]
            shutil.rmtree(copy)
    assert killed >= sum(CALLS.values())


def test_a_kill_during_a_conversion_leaves_a_view_that_is_not_current(tmp_path: Path) -> None:
    def older(name: str) -> Path:
        """Return the directory of a view of an earlier format: without rows."""
        directory = tmp_path / name
        with closing(view_of(directory)) as view:
            STEPS[0](view)
            STEPS[1](view)
        with closing(sqlite3.connect(directory / "state" / "view.sqlite")) as connection:
            connection.executescript(
                "DROP TABLE fact_values; DROP TABLE nodes; PRAGMA user_version = 6"
            )
        return directory

    trace, calls = tmp_path / "trace", {"pwrite64": 6, "fdatasync": 3}
    whole = older("whole")
    assert attempt(whole, trace, "-e", f"trace={','.join(calls)}", do="convert")[1] == 0
    new, text = found_in(whole), trace.read_text()
    for call, tries in calls.items():
        total = len(re.findall(rf"\b{call}\(", text))
        assert total >= tries, (call, total)
        for number in crash_points(total, tries):
            directory = older(f"{call}{number}")
            inject = f"inject={call}:signal=KILL:when={number}"
            assert attempt(directory, trace, "-e", inject, do="convert")[1] == -9
            with closing(view_of(directory)) as view:
                assert view.current_until() is None
                assert view.entry(NodeName(WEB.name)) is not None
                view.restore()
            assert found_in(directory) == new
