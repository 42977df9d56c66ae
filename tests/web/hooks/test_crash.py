"""A receiver that is killed at any write neither loses a delivery nor acts on it twice."""

import re
import shutil
from pathlib import Path

import pytest

from localpuppet.web.dashboard.signing_actor import STARTS
from localpuppet.web.hooks.hook_worker import read_records
from tests.rigs.crash_points import crash_points, run_under_strace
from tests.rigs.node import Node
from tests.web.hooks.one_hook import ROLLOUT
from tests.web.hooks.test_looking import Watch

# What durable files do; how many of each are tried with the tests: each rename, as it decides.
CALLS = {"rename": 5, "fsync": 3}
# What is done with a release, by the file that says how often: its rollout, and what comes of it.
ACTIONS: dict[str, tuple[dict[str, str], str]] = {
    "begun": ({"query": "role=web"}, f"rollout {ROLLOUT}"),
    "staged": ({}, "1 accepted"),
}


@pytest.mark.slow
@pytest.mark.parametrize("file", ACTIONS)
def test_a_kill_at_any_write_loses_and_repeats_no_release(tmp_path: Path, file: str) -> None:
    rollout, end = ACTIONS[file]
    watch = Watch(tmp_path, rollout=rollout)
    watch.look()
    watch.release("r1")
    trace, module = tmp_path / "trace", "tests.web.hooks.one_hook"

    def deliver(root: Path, *strace: str, after: float = 0.0) -> int:
        words = (str(root), str(after))
        return run_under_strace(trace, *strace, module=module, arguments=words).returncode

    def prepared(name: str) -> Path:
        return shutil.copytree(watch.node.root, tmp_path / name, symlinks=True)

    assert deliver(prepared("whole"), "-e", f"trace={','.join(CALLS)}") == 0
    text, killed, repeated = trace.read_text(), 0, 0
    (thread, *_) = re.findall(r"^(\d+) +rename\(.*/hooks\.json\"", text, re.MULTILINE)
    for call, tries in CALLS.items():
        total = len(re.findall(rf"^{thread} +{call}\(", text, re.MULTILINE))
        assert total >= tries, call
        for number in crash_points(total, tries):
            root = prepared(f"{call}{number}")
            killed += deliver(root, "-e", f"inject={call}:signal=KILL:when={number}") == -9
            assert deliver(root, "-e", "trace=none", after=STARTS) == 0
            record = read_records(Node(root).state)["web"]
            assert (record.result, record.failing) == (f"web/tags/r1: {end}", ""), (call, number)
            done = (root / file).read_text().splitlines()
            assert {*done} == {"web/tags/r1"}
            repeated += len(done) > 1
            shutil.rmtree(root)
    assert killed == sum(CALLS.values())
    assert not (rollout and repeated)
