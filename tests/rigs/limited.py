"""Python code in a separate process, with little memory and time."""

import resource
import subprocess
import sys

from tests.rigs.node import REPOSITORY, Done

MEMORY = 200 * 1024 * 1024


def limited(program: str, *, seconds: int = 5, memory: int = MEMORY) -> Done:
    """Run a program with so much address space and CPU time."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))

    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        preexec_fn=limit,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr)
