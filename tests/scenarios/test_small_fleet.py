"""docs/start/small-fleet.md shows what its commands print: three real nodes and an operator."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Timer

import pytest

from tests.rigs.long import LONG
from tests.rigs.node import PATIENCE, Node, completed, share_with
from tests.rigs.sessions import plain, section

PAGE = "start/small-fleet.md"
MARK = "-- end of the output --"
# These commands change nothing: a reader repeats them until the fleet is as far as the page.
READING = ("localpuppet nodes", "cat ")


class Terminal:
    """A shell into which a reader of the page types its commands."""

    def __init__(self, directory: Path) -> None:
        programs = Path(sys.executable).parent
        self._shell = subprocess.Popen(
            ["bash"],
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={
                "PATH": f"{programs}:{os.environ['PATH']}",
                "LC_ALL": "C.UTF-8",
                "HOME": str(directory),
            },
        )
        self._deadline = Timer(3 * PATIENCE, self._shell.kill)
        self._deadline.start()

    def type(self, command: str) -> list[str]:
        """Return the lines that a command prints."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._shell.stdin.write(f"{command}\necho '{MARK}'\n")
        self._shell.stdin.flush()
        lines = iter(self._shell.stdout.readline, "")
        printed = list[str]()
        for line in lines:
            if line.rstrip("\n") == MARK:
                return printed
            printed.append(line.rstrip("\n"))
        raise AssertionError(f"{command}: the shell ended: {printed}")

    def close(self) -> None:
        """End the agents, if the commands of the page did not, and the shell."""
        try:
            self._shell.communicate("kill $(jobs -p) 2>/dev/null; wait\n", timeout=PATIENCE)
        finally:
            self._deadline.cancel()


@pytest.fixture
def terminal() -> Iterator[tuple[Terminal, Path]]:
    # A socket's name may have 107 bytes: too few for what pytest makes.
    directory = Path(tempfile.mkdtemp(prefix="small", dir="/tmp"))
    terminal = Terminal(directory)
    try:
        yield terminal, directory
    finally:
        terminal.close()
        shutil.rmtree(directory)


def blocks() -> list[tuple[str, str]]:
    """Return the kind and the text of each block before the part about three machines."""
    page = section(PAGE, "").partition("\n## Use three machines\n")[0]
    return re.findall(r"^```(sh|console)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)


def test_the_tutorial_is_true(terminal: tuple[Terminal, Path], node: Node) -> None:
    shell, directory = terminal
    for kind, text in blocks():
        if kind == "sh":
            shell.type(text)
            for settings in directory.glob("fleet/*0[12]/localpuppet.yaml"):
                share_with(Node(settings.parent), node)
            continue
        for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            expected = plain(shown.splitlines())
            printed = plain(shell.type(command))
            patience = time.monotonic() + PATIENCE
            while command.startswith(READING) and printed != expected:
                if time.monotonic() > patience:
                    break
                time.sleep(0.5)
                printed = plain(shell.type(command))
            logs = "".join(log.read_text() for log in directory.glob("fleet/*/agent.log"))
            assert printed == expected, f"{command}\n{logs}"


@LONG
def test_the_demonstration_ends_well() -> None:
    """README and the landing page begin with it."""
    script = Path(__file__).parents[2] / "scripts/fleet"
    done = completed(script, "sqlite", timeout=600, cwd=script.parent)
    assert "the loop ends here" in done.out
    assert "server web02.example.com:8080" in done.out
