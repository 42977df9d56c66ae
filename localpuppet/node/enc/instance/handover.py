"""Hands facts to Puppet: a file for root alone, and the variable that names it.

Not the environment itself, and not a command line: user data often holds secrets, and what Puppet
starts inherits the one while everybody reads the other. Our Ruby reads the file:
`modules/localpuppet/localpuppet/lib/facter/localpuppet_instance.rb`.
"""

from collections.abc import Mapping
from pathlib import Path

from localpuppet.base.machine.files import make_private, remove, write_json

_FILE = Path("instance", "facts.json")


def hand_over(facts: Mapping[str, str], directory: Path) -> Path | None:
    """Write facts down for Puppet; return the file, `None` where there are none.

    What an earlier call has left goes when there are none any more.

    Args:
        facts: Values by name.
        directory: Our own directory, below which the file is.
    """
    path = directory / _FILE
    if not facts:
        remove(path)
        return None
    make_private(path.parent)
    write_json(path, dict(facts))
    return path
