"""A supervisor is killed at one system call after another while it keeps a good run and prunes.

Whatever happens, the node can go back to the last five releases, with the newest good run of each
that any record shows. A bounded sample runs with the tests; `scripts/crash` tries every call.
"""

import re
import shutil
from pathlib import Path

import pytest

from localpuppet.base.formats.names import RunId
from tests.node.runs.one_good_run import run
from tests.rigs.crash_points import crash_points, run_under_strace
from tests.rigs.recorded import Recorded

# How many calls of each kind are tried with the tests, spread over all that the process makes.
CALLS = {"write": 3, "fsync": 4, "rename": 3, "mkdir": 1, "unlink": 3, "unlinkat": 3, "rmdir": 2}
NEW = "web/tags/r7"


class Prepared:
    """A node that can go back to r2 to r6; nobody noted the last runs of r3 and of r6."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.whole = directory / "whole"
        site = Recorded(self.whole)
        self.last: dict[str, RunId] = {}
        for number in (1, 2, 3, 4, 5, 6):
            status = site.ran(f"web/tags/r{number}")
            site.good_runs.note(status)
            self.last[status.release] = status.id
        for number in (3, 6):
            status = site.ran(f"web/tags/r{number}")
            self.last[status.release] = status.id

    def attempt(self, name: str, *strace: str) -> tuple[Path, int]:
        """Have the last run of a copy end under strace; return the copy, and the exit code."""
        copy = self.directory / name
        shutil.copytree(self.whole, copy)
        trace, arguments = self.directory / "trace", (str(copy), NEW)
        done = run_under_strace(
            trace, *strace, module="tests.node.runs.one_good_run", arguments=arguments
        )
        return copy, done.returncode

    def calls(self) -> dict[str, int]:
        """Have the run end; return how often the process makes each call."""
        _copy, code = self.attempt("counted", "-e", f"trace={','.join(CALLS)}")
        assert code == 0
        text = (self.directory / "trace").read_text()
        return {call: len(re.findall(rf"\b{call}\(", text)) for call in CALLS}

    def holds(self, copy: Path, where: str) -> None:
        """Hold a copy to the rule, and to converging when the next run ends."""
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
        left = {path.name for path in site.good.iterdir()}
        assert left == {"lock", *(f"web%tags%r{number}.json" for number in (3, 4, 5, 6, 7))}, where


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
