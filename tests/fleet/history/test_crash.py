"""A node is killed between two writes of its history, or the disk refuses one."""

import re
import shutil
from pathlib import Path

import pytest

from localpuppet.fleet.history.history_records import RUNS, parse_day
from localpuppet.fleet.history.node_history import DayLog
from tests.fleet.history.one_append import main
from tests.fleet.make import TODAY
from tests.rigs.crash_points import crash_points, run_under_strace

CALLS = {"write": 2, "fsync": 4, "rename": 3, "mkdir": 2}


def _append(directory: Path, *strace: str) -> int:
    """Let a process begin and append to a log under strace; return how it ended."""
    arguments = (str(directory / "state"),)
    module = "tests.fleet.history.one_append"
    done = run_under_strace(directory / "trace", *strace, module=module, arguments=arguments)
    return done.returncode


def _runs(state: Path) -> dict[int, int]:
    log = DayLog(state, RUNS)
    payloads = {day: log.payload(day) for day in log.days()}
    return {day: len(parse_day(found or b"", RUNS).records) for day, found in payloads.items()}


@pytest.mark.parametrize("fault", ["signal=KILL", "error=ENOSPC"])
def test_a_fault_leaves_whole_days_and_the_next_run_ends_them(tmp_path: Path, fault: str) -> None:
    (tmp_path / "state").mkdir()
    assert _append(tmp_path, "-e", f"trace={','.join(CALLS)}") == 0
    text = (tmp_path / "trace").read_text()
    complete = {TODAY - 1: 1, TODAY: 2}
    assert _runs(tmp_path / "state") == complete
    hit = 0
    for call, least in CALLS.items():
        total = len(re.findall(rf"\b{call}\(", text))
        assert total >= least, call
        for number in crash_points(total, least):
            shutil.rmtree(tmp_path / "state")
            (tmp_path / "state").mkdir()
            hit += _append(tmp_path, "-e", f"inject={call}:{fault}:when={number}") != 0
            assert _runs(tmp_path / "state") in ({}, {TODAY - 1: 1, TODAY: 1}, complete)
            main(tmp_path / "state")
            assert _runs(tmp_path / "state") == complete
    assert hit == sum(CALLS.values())
