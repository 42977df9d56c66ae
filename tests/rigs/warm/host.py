"""What of an agent starts runs: a fork server if the settings say so, and a run for each line.

    python host.py ROOT        a line `run` or `noop` in, a line of JSON of its end out

A server that has ended is there again before the next run, as after a pause of the real agent.
"""

import asyncio
import json
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

from localpuppet.base.errors import UnavailableError
from localpuppet.base.machine.kept_process import KeptProcess
from localpuppet.fleet.agent.fork_runner import ForkRunner
from localpuppet.fleet.agent.runner import RunOrder
from localpuppet.fleet.wiring.agent_child import run_order
from localpuppet.fleet.wiring.neighbours import FleetNeighbours
from localpuppet.fleet.wiring.settings import fleet_settings
from localpuppet.fleet.wiring.warming import start_server
from localpuppet.node.wiring.node import NodePorts, NodeWiring
from localpuppet.node.wiring.state import find_puppet, open_fork_server


def serving(node: NodeWiring, before: KeptProcess | None) -> KeptProcess | None:
    """Return a server that listens; `None` if the next run has to read Puppet's settings first."""
    place = open_fork_server(node)
    if before is not None:
        if node.processes.alive(before.identity):
            return before
        before.code()
    place.path.unlink(missing_ok=True)
    try:
        server = start_server(node)
    except UnavailableError:  # the agent logs it, and starts the server after that run
        return None
    while not place.path.exists():
        assert Path(f"/proc/{server.identity.pid}").exists(), "the fork server ended"
        time.sleep(0.01)
    return server


def main(root: str) -> None:
    node = NodeWiring(root, ports=NodePorts(neighbours=FleetNeighbours))
    find_puppet(node, ask=True)
    runner = ForkRunner(partial(run_order, node))
    server: KeptProcess | None = None
    for line in sys.stdin:
        if fleet_settings(node).agent.warm and line != "alone\n":
            server = serving(node, server)
        end = asyncio.run(runner.run(RunOrder(causes={}, text="a test", noop=line == "noop\n")))
        sys.stdout.write(json.dumps(asdict(end)) + "\n")
        sys.stdout.flush()


main(sys.argv[1])
