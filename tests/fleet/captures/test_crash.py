"""Keeping and collecting a capture is killed between two writes, or the disk refuses one."""

import base64
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from localpuppet.fleet.captures import CaptureKeeper, read_capture
from localpuppet.fleet.requests.request import ChunkArguments
from localpuppet.node.preview.nodes_directory import NodesDirectory
from tests.fleet.captures.one_capture import main
from tests.fleet.captures.test_collecting import LAX, WEB
from tests.rigs.crash_points import crash_points, run_under_strace

# Of a file and of its directory.
CALLS = {"fsync": 2, "rename": 1}


def _run(directory: Path, step: str, *strace: str) -> int:
    arguments = (str(directory / "site"), step, "2")
    module = "tests.fleet.captures.one_capture"
    done = run_under_strace(directory / "trace", *strace, module=module, arguments=arguments)
    return done.returncode


def _numbers(directory: Path) -> tuple[object, object]:
    """Return the fact of the kept capture and of the collected one; both must be whole."""
    reply: Any = CaptureKeeper(directory / "state", LAX).reply(ChunkArguments())
    own = read_capture(WEB, base64.b64decode(reply["data"]))
    nodes = NodesDirectory(directory / "nodes")
    (file,) = nodes.files()
    assert file.path.stat().st_mode & 0o777 == 0o600
    return own.facts["number"], nodes.read(file).facts["number"]


@pytest.mark.parametrize("fault", ["signal=KILL", "error=ENOSPC"])
@pytest.mark.parametrize("step", ["keep", "collect"])
def test_a_fault_leaves_the_old_or_new_capture_whole(tmp_path: Path, step: str, fault: str) -> None:
    old, site = tmp_path / "old", tmp_path / "site"
    main(old, "keep", 1)
    main(old, "collect", 1)
    if step == "collect":
        main(old, "keep", 2)
    before = _numbers(old)
    shutil.copytree(old, site)
    assert _run(tmp_path, step, "-e", f"trace={','.join(CALLS)}") == 0
    after = _numbers(site)
    assert after != before
    text = (tmp_path / "trace").read_text()
    hit = 0
    for call, total in CALLS.items():
        assert len(re.findall(rf"\b{call}\(", text)) == total, call
        for number in crash_points(total, total):
            shutil.rmtree(site)
            shutil.copytree(old, site)
            hit += _run(tmp_path, step, "-e", f"inject={call}:{fault}:when={number}") != 0
            assert _numbers(site) in (before, after)
            main(site, step, 2)
            assert _numbers(site) == after
    assert hit == sum(CALLS.values())
