"""Runs as an agent starts them, for `overhead.py`: a line of JSON for each line of input.

    run | noop      a run while the fork server listens
    recycled        a run during the start of a new server: the run starts cold

    warm_runs.py ROOT

The time is that of the agent's wait: from its order to the end of the run's supervisor, with the
record. The CPU time is that of the supervisor and of Puppet, whose parent is the fork server.
"""

import asyncio
import json
import os
import resource
import sys
import time
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from localpuppet.base.machine.processes import KeptProcess
from localpuppet.fleet.agent.agent import RunOrder
from localpuppet.fleet.agent.fork_runner import ForkRunner, run_order, start_server, warm
from localpuppet.fleet.neighbours import FleetNeighbours
from localpuppet.node.app import NodeApp, NodePorts

TICK = os.sysconf("SC_CLK_TCK")


class Host:
    """The part of an agent that starts runs."""

    def __init__(self, root: str) -> None:
        self._node = NodeApp(root, ports=NodePorts(neighbours=FleetNeighbours))
        self._place = self._node.fork_server
        self._server: KeptProcess | None = None
        warm(self._node)
        self._runner = ForkRunner(partial(run_order, self._node))

    def settle(self) -> None:
        """Wait until the environment server has read its code, if a run has left names."""
        names = self._place.path.with_suffix(".names")
        while self._server is not None and names.exists() and not self._environments():
            time.sleep(0.01)

    def serve(self, *, wait: bool) -> None:
        """Ensure a server, new if necessary; wait until it listens, or not."""
        if self._server is not None:
            if self._node.processes.alive(self._server.identity):
                return
            self._server.code()
        self._place.path.unlink(missing_ok=True)
        self._server = start_server(self._node)
        while wait and not self._place.path.exists():
            time.sleep(0.01)

    def recycle(self) -> None:
        """End the server, and start another."""
        self.serve(wait=True)
        assert self._server is not None
        self._server.end()
        self._server.code()
        self._server = None
        self.serve(wait=False)

    def run(self, *, noop: bool) -> dict[str, object]:
        """Do a run, and return its time."""
        before, began = self._cpu(), time.perf_counter()
        end = asyncio.run(self._runner.run(RunOrder(causes={}, text="benchmark", noop=noop)))
        wall = time.perf_counter() - began
        status = json.loads(
            (self._node.settings.state / "runs" / str(end.run) / "status.json").read_text()
        )
        if end.outcome not in ("changed", "unchanged"):
            raise SystemExit(f"the run {end.outcome}: {end.reason}")
        return {
            "wall": wall,
            "cpu": self._cpu() - before,
            "warm": status.get("warm", False),
            "memory": self._place.memory(),
        }

    def _cpu(self) -> float:
        """Return the CPU seconds of ended children of this process and of the server."""
        ours = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = ours.ru_utime + ours.ru_stime
        if self._server is not None:
            # A server that has ended stays a zombie until the next one is started.
            for pid in (self._server.identity.pid, *self._environments()):
                stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
                seconds += sum(map(int, stat.split()[13:15])) / TICK
        return seconds

    def _environments(self) -> list[int]:
        """Return the environment server after it has read its code."""
        assert self._server is not None
        pid = self._server.identity.pid
        try:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            return [
                int(child)
                for child in children
                if Path(f"/proc/{child}/comm").read_text() == "environment\n"
            ]
        except OSError:
            return []


def main() -> None:
    """Serve lines of standard input."""
    host = Host(sys.argv[1])
    for line in sys.stdin:
        word = line.strip()
        if word == "recycled":
            host.recycle()
        else:
            host.serve(wait=True)
            host.settle()
        print(json.dumps(host.run(noop=word == "noop")), flush=True)


main()
