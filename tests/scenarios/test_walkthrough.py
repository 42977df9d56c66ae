"""The page of the first rollout shows what its example prints: real nodes and Puppet, a kill -9."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rigs.long import LONG
from tests.rigs.node import REPOSITORY
from tests.rigs.transcript import differences, fences, pasted

PAGE = REPOSITORY / "docs" / "start" / "first-rollout.md"
EXAMPLE = REPOSITORY / "docs" / "examples" / "three-tier" / "run"
# Some fifty seconds of the processor, on a machine that may have ten times as much to do.
PATIENCE = 900.0


@pytest.fixture
def printed(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """Run the example; return what it printed, and where its files are."""
    # A socket's name may have 107 bytes: too few for what pytest makes.
    top = Path(tempfile.mkdtemp(prefix="shop", dir="/tmp"))
    programs = Path(sys.executable).parent
    errors = tmp_path / "errors"
    with errors.open("wb") as said:
        process = subprocess.Popen(
            [EXAMPLE, "--in", top / "shop"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8"}
            | {"LOCALPUPPET_TRACEBACK": "1"},
        )
    try:
        out, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, out + errors.read_text()
        yield out, top / "shop"
    finally:
        if process.poll() is None:  # it ends its agents
            process.send_signal(signal.SIGTERM)
            process.wait()
        shutil.rmtree(top)


@LONG
def test_the_page_has_what_the_example_prints(printed: tuple[str, Path]) -> None:
    out, directory = printed
    found = differences(PAGE.read_text("utf-8"), out.replace(str(directory), "/tmp/shop"))
    logs = "".join(log.read_text() for log in directory.glob("*.log"))
    assert not found, "\n".join([*found, logs])
    policy = directory / "nodes" / "db01.example.com" / "policies" / "puppet.policy"
    assert policy.read_text() in PAGE.read_text("utf-8")
    staged = directory / "alice" / "var" / "releases"
    assert len(list(staged.iterdir())) == len(["r1", "r2", "r3"])  # for her dashboard
    picture = REPOSITORY / "docs" / "images" / "walkthrough-plan.svg"
    assert texts(directory / "plan.svg") == texts(picture)


def texts(picture: Path) -> list[str]:
    """Return the texts of a picture, sorted: places differ between versions of Graphviz."""
    return sorted(re.findall(r"<text [^>]*>([^<]*)</text>", picture.read_text("utf-8")))


def test_a_page_with_other_output_is_detected() -> None:
    page = "text\n```console\nold\n```\nmore\n```console\n$ b (1.5s)  \n```\n"
    printed = "\n== One ==\n\n$ a\n\n== Two ==\n\n$ b (12s)\n\n\n"
    assert differences(page, printed)[3:] == ["-old", "+$ a"]
    new = pasted(page, printed)
    assert fences(new) == ["$ a\n", "$ b (12s)\n"]
    assert differences(new, printed) == []
    assert differences(new, printed + "== Three ==\n$ c\n")[3:] == ["+$ c"]
    with pytest.raises(ValueError, match="1 sections for 2 fences"):
        pasted(page, "== One ==\n$ a\n")
