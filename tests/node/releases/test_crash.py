"""A test kills stage, or lets its disk fail, at each system call in turn.

Afterwards the old release is verified, staging again succeeds, and no temporary files remain. The
suite runs a sample; `scripts/crash` runs every call (CRASH_FULL=1).
"""

import os
import re
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from localpuppet.base.machine.files import remove_tree
from tests.rigs.crash_points import FULL, crash_points
from tests.rigs.forge import Forge, klass, release
from tests.rigs.long import with_sample
from tests.rigs.node import COMMAND, PATIENCE, REPOSITORY, Node

# The kinds of system calls of stage, and how many of a kind fail in the suite.
CALLS = ("rename", "syncfs", "symlink", "unlink", "fsync", "mkdir", "write", "openat")
KILLED = 2
# System calls of git on a mirror and on a tree.
GIT_CALLS = ("write", "openat", "rename", "unlink", "link", "mkdir")
# A system call, what happens at it, and how many of its calls are hit in the suite.
FAULTS = [
    *((call, "signal=KILL", KILLED) for call in CALLS),
    *(
        (call, f"error={error}", 1)
        for call in ("write", "fsync", "rename", "symlink", "mkdir")
        for error in ("ENOSPC", "EIO")
    ),
]
SAMPLE = [
    *(("write", "signal=KILL", KILLED), ("rename", "signal=KILL", KILLED)),
    *(("write", "error=ENOSPC", 1), ("fsync", "error=EIO", 1)),
]


def stage(node: Node, *strace: str) -> "subprocess.CompletedProcess[str]":
    """Stage r2 under strace, which injects a fault into this process (git has a separate test)."""
    return subprocess.run(
        ["strace", "-qq", "-o", node.root / "trace", *strace, *COMMAND, "stage", "web/tags/r2"],
        env=node.environment(PYTHONPATH=str(REPOSITORY), PYTHONDONTWRITEBYTECODE="1"),
        cwd="/",
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def forget(node: Node) -> None:
    """Remove r2 as gc does, and the memory of its tag, which gc keeps."""
    node.write("input.yaml", "app: web/tags/r1\nclasses: [web]\n")
    with suppress(FileNotFoundError):
        os.utime(node.state / "staged" / "web%tags%r2.json", (0, 0))  # old, so that gc removes it
    node.run("release", "gc", code=0)
    assert not (node.root / "modules/web/tags/r2").is_symlink()
    (node.state / "tags.json").unlink(missing_ok=True)


def rubbish(node: Node) -> list[Path]:
    """Return files that should not remain: temporary names, locks, unused trees."""
    hidden = [*node.state.rglob(".*"), *node.root.joinpath("modules").rglob(".*.*")]
    for pattern in ("*.lock", "tmp_*"):
        hidden += (node.state / "mirrors").rglob(pattern)
    return [*hidden, *(node.state / "staging").iterdir()]


def count(node: Node, call: str) -> int:
    done = stage(node, "-e", f"trace={call}")
    assert done.returncode == 0, done.stderr
    lines = (node.root / "trace").read_text().splitlines()
    forget(node)
    return len([line for line in lines if re.match(rf"{call}\(", line)])


def converges(node: Node, message: str) -> None:
    """Assert that r1 is verified, that staging r2 again succeeds, and that no rubbish remains."""
    assert node.run("release", "verify", "web/tags/r1").code == 0, message
    assert node.run("check").code == 0, message
    again = node.run("stage", "web/tags/r2")
    assert again.code == 0, f"{message}: {again.err}"
    assert node.run("release", "verify", "--all").code == 0, message
    assert rubbish(node) == [], message


@pytest.mark.parametrize(("call", "fault", "hits"), with_sample(FAULTS, *SAMPLE))
def test_staging_again_succeeds_after_a_fault_at_a_system_call(
    site: Node, forge: Forge, call: str, fault: str, hits: int
) -> None:
    site.run("stage", code=0)
    release(site, forge, "r2")
    total = count(site, call)
    for number in crash_points(total, hits):
        where = f"{call} {number} of {total}: {fault}"
        done = stage(site, "-e", f"inject={call}:{fault}:when={number}")
        assert (done.returncode == -9) == (fault == "signal=KILL"), f"{where}: {done.stderr}"
        assert not re.search("Traceback|bug", done.stderr), f"{where}: {done.stderr}"
        converges(site, where)
        forget(site)


@pytest.mark.parametrize("call", with_sample(GIT_CALLS, "rename"))
def test_staging_again_succeeds_after_a_kill_of_git_at_a_system_call(
    site: Node, forge: Forge, call: str
) -> None:
    """Git and its children are killed at their N-th call, with N up to the number of calls."""
    site.run("stage", code=0)
    forge.repo("ntp").commit({"manifests/init.pp": klass("ntp", "ntp v2")}, "v2")
    release(site, forge, "r2", ntp="v2")
    traced = site.root / "traced"
    traced.mkdir()
    failed = 0
    for number in range(1, 400) if FULL else (1, 8, 400):
        remove_tree(site.state / "mirrors")
        (traced / "git").write_text(
            f"#!/bin/sh\nexec strace -f -qq -o {site.root}/trace"
            f' -e inject={call}:signal=KILL:when={number} /usr/bin/git "$@"\n'
        )
        (traced / "git").chmod(0o755)
        killed = site.run("stage", "web/tags/r2", PATH=f"{traced}:{os.environ['PATH']}")
        assert killed.code in (0, 3, 69), f"{call} {number}: {killed.err}"
        assert killed.code == 0 or killed.err.startswith("localpuppet: error: "), killed.err
        failed += killed.code != 0
        converges(site, f"{call} {number}")
        forget(site)
        if killed.code == 0:
            break
    else:
        pytest.fail(f"git still makes {call} {number} times")
    assert failed, "no process was killed"
