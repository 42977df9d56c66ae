"""How this program calls itself, from any environment and working directory."""

import shlex
import sys
from pathlib import Path


def own_command() -> str:
    """Return the shell command that calls this very program from any environment."""
    return shlex.join(own_words())


def own_words() -> list[str]:
    """Return the command words that call this very program from any environment."""
    script = Path(__file__).parents[3] / "localpuppet.py"
    return [sys.executable, str(script)] if script.is_file() else module_words("localpuppet")


def module_words(name: str) -> list[str]:
    """Return the command words that run a Python module of this program.

    Without `-P`, `python -m` imports from the working directory first, which may belong to another
    user. If this process runs with `-I`, the command keeps it: Python then also ignores its
    environment variables.
    """
    return [sys.executable, "-I" if sys.flags.isolated else "-P", "-m", name]
