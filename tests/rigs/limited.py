"""Python code in a separate process, with little memory and time."""

import resource
import sys
from collections.abc import Sequence
from typing import Any

from tests.rigs.node import REPOSITORY, Done, completed

MEMORY = 200 * 1024 * 1024


def limited(
    program: str = "",
    *,
    command: Sequence[str] = (),
    seconds: int = 5,
    memory: int = MEMORY,
    **more: Any,
) -> Done:
    """Run code, or a command, with so much address space and CPU time."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))

    words = command or [sys.executable, "-c", program]
    return completed(*words, check=False, preexec_fn=limit, **{"cwd": REPOSITORY, **more})
