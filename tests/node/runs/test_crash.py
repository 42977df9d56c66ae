"""A test kills a supervisor at each system call in turn while it stores a good run and prunes.

Afterwards, the node can go back to the last five releases, with the newest recorded good run of
each. The suite runs a sample; `scripts/crash` runs every call.
"""

import re
import shutil
from pathlib import Path

import pytest

from localpuppet.base.formats.names import RunId
from tests.node.runs.one_good_run import run
from tests.rigs.crash_points import crash_points, run_under_strace
from tests.rigs.recorded import Recorded

# The number of calls of each kind in the suite, spread over all calls of the process.
CALLS = {"write": 3, "fsync": 4, "rename": 3, "mkdir": 1, "unlink": 3, "unlinkat": 3, "rmdir": 2}
NEW = "web/tags/r7"


class Prepared:
    """A node that can go back to r2 to r6; the last good runs of r3 and r6 are not yet stored."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.whole = directory / "whole"
        site = Recorded(self.whole)
        self.last: dict[str, RunId] = {}
        for number in (1, 2, 3, 4, 5, 6):
            status = site.ran(f"web/tags/r{number}")
            site.good_runs.keep(status)
            self.last[status.release] = status.id
        for number in (3, 6):
            status = site.ran(f"web/tags/r{number}")
            self.last[status.release] = status.id

    def attempt(self, name: str, *strace: str) -> tuple[Path, int]:
        """End the last run of a copy under strace, and return the copy and the exit code."""
        copy = self.directory / name
        shutil.copytree(self.whole, copy)
        trace, arguments = self.directory / "trace", (str(copy), NEW)
        done = run_under_strace(
            trace, *strace, module="tests.node.runs.one_good_run", arguments=arguments
        )
        return copy, done.returncode

    def calls(self) -> dict[str, int]:
        """End the run, and return the number of each system call."""
        _copy, code = self.attempt("counted", "-e", f"trace={','.join(CALLS)}")
        assert code == 0
        text = (self.directory / "trace").read_text()
        return {call: len(re.findall(rf"\b{call}\(", text)) for call in CALLS}

    def holds(self, copy: Path, where: str) -> None:
        """Assert the rule for a copy, and again after the end of the next run."""
        site = Recorded(copy)
        newest = next(site.records.history())
        last = {**self.last, **({NEW: newest.id} if newest.release == NEW and newest.good else {})}
        wanted = dict(sorted(last.items(), key=lambda item: item[1])[-5:])
        assert {app: _found(site, app) for app in wanted} == wanted, where
        run(copy, NEW)
        site = Recorded(copy)
        last[NEW] = site.records.ids()[0]
        wanted = dict(sorted(last.items(), key=lambda item: item[1])[-5:])
        assert {app: _found(site, app) for app in wanted} == wanted, where
        files = {path.name for path in site.good.iterdir()}
        assert files == {"lock", *(f"web%tags%r{number}.json" for number in (3, 4, 5, 6, 7))}, where


def _found(site: Recorded, app: str) -> RunId | None:
    good = site.good_runs.newest(lambda _, other: other == app)
    assert good is None or good.node_document == {"classes": {"web": {"run": good.run}}}
    return None if good is None else good.run


@pytest.mark.parametrize("fault", ["signal=KILL", "error=ENOSPC"])
def test_a_fault_at_a_system_call_loses_no_good_run(fault: str, tmp_path: Path) -> None:
    prepared = Prepared(tmp_path)
    hit = 0
    for call, total in prepared.calls().items():
        assert total >= CALLS[call], (call, total)
        for number in crash_points(total, CALLS[call]):
            inject = f"inject={call}:{fault}:when={number}"
            copy, code = prepared.attempt(f"{call}{number}", "-e", inject)
            hit += code == -9 or "ENOSPC" in (tmp_path / "trace").read_text()
            prepared.holds(copy, inject)
            shutil.rmtree(copy)
    assert hit >= sum(CALLS.values())
