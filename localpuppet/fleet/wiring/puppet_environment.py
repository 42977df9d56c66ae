"""The environment variables with which code in a run reaches this very program."""

import shlex
import sys
from pathlib import Path

from localpuppet.fleet.wiring.fleet import peers
from localpuppet.node.wiring.node import NodeWiring


def own_variables(node: NodeWiring) -> dict[str, str]:
    """Return the environment variables by which Puppet code of a run reaches localpuppet."""
    settings = peers(node)
    always = {"LOCALPUPPET_KICK": "always"} if settings.kick_always else {}
    return {
        "LOCALPUPPET_ROOT": str(node.settings.root),
        "LOCALPUPPET_SOCKET": str(settings.socket),
        "LOCALPUPPET_COMMAND": own_command(),
        **always,
    }


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

    Args:
        name: The module.
    """
    return [sys.executable, "-I" if sys.flags.isolated else "-P", "-m", name]
