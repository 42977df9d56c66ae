"""A node is killed at one system call of its reaction after another, or the disk refuses it.

Whatever happens, the change leads to one run and not to two. A bounded sample runs with the tests;
`scripts/crash` tries every call (CRASH_FULL=1).
"""

import re
import shutil
from pathlib import Path

import pytest

from tests.fleet.edges.reacting_node import KilledNode
from tests.rigs.crash_points import crash_points, run_under_strace

# System calls of SQLite and of localpuppet's durable files, and how many of each the tests try.
CALLS = {"write": 1, "pwrite64": 2, "fdatasync": 2, "fsync": 2, "rename": 2}


class Prepared:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.whole = directory / "whole"
        node = KilledNode(self.whole)
        node.says("10.0.0.1")
        node.end(node.begin(1))
        node.turns()
        assert node.inbox.causes() == []
        node.says("10.0.0.2")
        node.view.close()
        node.inbox.close()

    def attempt(self, name: str, *strace: str) -> tuple[Path, int]:
        """Let a copy react under strace; return the copy, and how the process ended."""
        copy = self.directory / name
        shutil.copytree(self.whole, copy)
        trace, module = self.directory / "trace", "tests.fleet.edges.reacting_node"
        done = run_under_strace(trace, *strace, module=module, arguments=(str(copy),))
        return copy, done.returncode

    def calls(self) -> dict[str, int]:
        copy, code = self.attempt("counted", "-e", f"trace={','.join(CALLS)}")
        assert code == 0
        assert len(KilledNode(copy).inbox.causes()) == 1
        text = (self.directory / "trace").read_text()
        return {call: len(re.findall(rf"\b{call}\(", text)) for call in CALLS}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return Prepared(tmp_path_factory.mktemp("reactions"))


@pytest.mark.parametrize("fault", ["signal=KILL", "error=ENOSPC"])
def test_a_fault_at_a_system_call_costs_no_reaction_and_makes_no_second(
    prepared: Prepared, fault: str, tmp_path: Path
) -> None:
    prepared.directory = tmp_path
    hit = 0
    for call, total in prepared.calls().items():
        assert total >= CALLS[call], (call, total)
        for number in crash_points(total, CALLS[call]):
            inject = f"inject={call}:{fault}:when={number}"
            copy, code = prepared.attempt(f"{call}{number}", "-e", inject)
            hit += code == -9 or "ENOSPC" in (tmp_path / "trace").read_text()
            for _ in range(2):
                node = KilledNode(copy)
                node.turns()
                (cause,) = node.inbox.causes()
                assert [change.facts for change in cause.changes] == [("ipaddress",)]
                node.inbox.close()
                node.view.close()
            shutil.rmtree(copy)
    assert hit >= sum(CALLS.values())
