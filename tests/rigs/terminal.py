"""Runs localpuppet on a terminal, with what a person types there."""

import os
import pty
import select
import subprocess

from tests.rigs.node import COMMAND, PATIENCE, REPOSITORY, Done, Node


def in_terminal(node: Node, *arguments: str, typed: str = "", **more: str) -> Done:
    """Run a command on a terminal; return its exit code and what it wrote there."""
    leader, follower = pty.openpty()
    environment = node.environment(
        **{"PYTHONPATH": str(REPOSITORY), "TERM": "xterm-256color", **more}
    )
    os.write(leader, typed.encode())
    with subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env=environment,
        cwd="/",
    ) as process:
        os.close(follower)
        seen = b""
        while select.select([leader], [], [], PATIENCE)[0]:
            try:
                chunk = os.read(leader, 65536)
            except OSError:  # the terminal's other side is closed: the program has ended
                break
            seen += chunk
        code = process.wait(PATIENCE)
    os.close(leader)
    return Done(code, seen.decode(), "")
