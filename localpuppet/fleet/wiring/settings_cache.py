"""Fill the cache of settings before the agent loads the rest of the program."""

import os
from contextlib import suppress

from localpuppet.base.errors import LocalpuppetError
from localpuppet.fleet.wiring.fleet import fleet_settings
from localpuppet.node.app import NodeApp


def fill_settings_cache(node: NodeApp) -> None:
    """Read the settings and Puppet's own once, in a child that caches them on disk.

    Without Puppet's settings, the agent knows neither the node's name nor where `puppet agent
    --disable` leaves its lock.

    From that cache, the agent reads its settings without loading YAML, JSON Schema and sh: 3 MiB
    that it would keep for its lifetime. If the child fails, the agent meets and reports the same
    error.
    """
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    try:
        with suppress(LocalpuppetError, OSError):
            _ = fleet_settings(node)
            node.documents.remember()
            node.find_puppet(ask=True)
    finally:
        os._exit(0)
