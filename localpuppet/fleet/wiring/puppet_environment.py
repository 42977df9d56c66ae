"""What a run finds in its environment, so that code in it reaches this very program."""

import shlex
import sys
from pathlib import Path

from localpuppet.fleet.wiring.settings import peers
from localpuppet.node.wiring.node import NodeWiring


def own_variables(node: NodeWiring) -> dict[str, str]:
    """Return the variables; docs/puppet-module.md says what they are for."""
    settings = peers(node)
    always = {"LOCALPUPPET_KICK": "always"} if settings.kick_always else {}
    return {
        "LOCALPUPPET_ROOT": str(node.settings.root),
        "LOCALPUPPET_SOCKET": str(settings.socket),
        "LOCALPUPPET_COMMAND": own_command(),
        **always,
    }


def own_command() -> str:
    """Return the words that call this very program from whatever environment, as a shell's."""
    return shlex.join(own_words())


def own_words() -> list[str]:
    """Return the words that call this very program from whatever environment."""
    script = Path(__file__).parents[3] / "localpuppet.py"
    return [sys.executable, str(script)] if script.is_file() else module_words("localpuppet")


def module_words(name: str) -> list[str]:
    """Return the words that run a Python module of this program.

    Without `-P`, `python -m` imports from the working directory first, which may be another user's.
    `-I`, where this process has it, also ignores the variables that Python reads.

    Args:
        name: The module.
    """
    return [sys.executable, "-I" if sys.flags.isolated else "-P", "-m", name]
