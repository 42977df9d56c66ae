"""The part of an agent that starts runs: a fork server if set, a run for each line.

    python host.py ROOT        a line `run` or `noop` in, a line of JSON of its end out

A server that has ended is replaced before the next run, as after a pause of the real agent. So is
one that must end: after a run with changes or a failure, or because Ruby was compiled since it
started. Otherwise the next run could reach it before it ends, and start cold.
"""

import asyncio
import json
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

from localpuppet.base.errors import UnavailableError
from localpuppet.base.machine.processes import KeptProcess
from localpuppet.fleet.agent.agent import RequestedRunResult, RunCompletion, RunOrder
from localpuppet.fleet.agent.fork_runner import ForkRunner, run_order, start_server
from localpuppet.fleet.app import FleetApp
from localpuppet.fleet.neighbours import FleetNeighbours
from localpuppet.node.app import NodeApp, NodePorts
from tests.rigs.warm.listening import is_listening


class Serving:
    """The fork server of a node, between its runs."""

    def __init__(self, node: NodeApp) -> None:
        self._node = node
        self._server: KeptProcess | None = None
        self._pack = ""
        self._ends = False

    def begin(self) -> None:
        """Have a server that listens; none if the next run has to read Puppet's settings first."""
        if self._server is not None:
            if not self._ends and self._pack != self._stamp():
                self._server.end()
            elif not self._ends and self._node.processes.alive(self._server.identity):
                return
            self._server.code()
        place = self._node.fork_server
        place.path.unlink(missing_ok=True)
        self._ends, self._pack, self._server = False, self._stamp(), None
        try:
            self._server = start_server(self._node)
        except UnavailableError:  # the agent logs it, and starts the server after that run
            return
        while not is_listening(place.path):
            assert Path(f"/proc/{self._server.identity.pid}").exists(), "the fork server ended"
            time.sleep(0.01)

    def note(self, end: RunCompletion) -> None:
        """Note whether a run makes the server end: its Puppet was the server's, and changed."""
        records = sorted(self._node.settings.state.glob("runs/[!.]*/status.json"))
        if end.result is RequestedRunResult.OVER and records:
            record = json.loads(records[-1].read_text())
            self._ends = bool(record.get("warm")) and record.get("exit_code") != 0

    def _stamp(self) -> str:
        """Return what changes with the compiled Ruby."""
        try:
            status = (self._node.settings.state / "cache" / "ruby" / "pack").stat()
        except FileNotFoundError:
            return ""
        return f"{status.st_ino} {status.st_mtime_ns} {status.st_ctime_ns}"


def main(root: str) -> None:
    node = NodeApp(root, ports=NodePorts(neighbours=FleetNeighbours))
    node.find_puppet(ask=True)
    runner = ForkRunner(partial(run_order, node))
    server = Serving(node)
    for line in sys.stdin:
        if FleetApp(node).settings.agent.warm and line != "alone\n":
            server.begin()
        end = asyncio.run(runner.run(RunOrder(causes={}, text="a test", noop=line == "noop\n")))
        server.note(end)
        sys.stdout.write(json.dumps(asdict(end)) + "\n")
        sys.stdout.flush()


main(sys.argv[1])
