"""Passes facts to Puppet: in a file for root alone, and a variable that names it.

The facts are neither in the environment, which Puppet's child processes inherit, nor on a command
line, which all users can read: user data often holds secrets. localpuppet's Ruby code reads the
file: `modules/localpuppet/localpuppet/lib/facter/localpuppet_instance.rb`.
"""

from collections.abc import Mapping
from pathlib import Path

from localpuppet.base.machine.files import make_private, remove, write_json

_FILE = Path("instance", "facts.json")


def hand_over(facts: Mapping[str, str], directory: Path) -> Path | None:
    """Write facts to a file for Puppet; return the file, or `None` without facts.

    Without facts, this removes the file of an earlier call.

    Args:
        facts: Values by name.
        directory: A directory of localpuppet, below which the file is.
    """
    path = directory / _FILE
    if not facts:
        remove(path)
        return None
    make_private(path.parent)
    write_json(path, dict(facts))
    return path
