"""A node whose runs an agent starts, warm or cold: see `host.py`."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from localpuppet.base.machine.fork_server import ForkServerClient
from localpuppet.base.machine.processes import SystemProcesses
from tests.rigs.member import read_line
from tests.rigs.node import PATIENCE, REPOSITORY, Node, processes_with

HOST = Path(__file__).with_name("host.py")


class WarmNode:
    """A node and what starts its runs."""

    def __init__(self, node: Node, *, warm: bool, **puppet: str) -> None:
        self.node = node
        self._warm = warm
        node.copy_pack()
        self.settings(**puppet)
        path = node.state / "agent" / "fork_server.sock"
        # its fork server, which exists while `warm`
        self.server = ForkServerClient(path, SystemProcesses())
        self._host = subprocess.Popen(
            [sys.executable, str(HOST), str(node.root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
            env=node.environment(PYTHONPATH=str(REPOSITORY)),
        )

    def settings(self, node: str | None = None, **puppet: str) -> None:
        """Set the node up, with more settings of Puppet's; the next run has them, the host not."""
        named = {} if node is None else {"node": node}
        timeouts = {"grace": 1, "run": 300}
        self.node.settings(agent={"warm": self._warm}, timeouts=timeouts, puppet=puppet, **named)

    def begin(self, how: str = "run") -> None:
        """Have a run started: `run`, `noop`, or `alone`, with no server where none is."""
        assert self._host.stdin is not None
        self._host.stdin.write(f"{how}\n")
        self._host.stdin.flush()

    def over(self) -> dict[str, Any]:
        """Wait for the run's end, and for compiled Ruby that it lacked; return its record."""
        end = self.told()
        assert end["run"], end
        self.node.wait_until(self._compiles_nothing)
        return self.record(end["run"])

    def _compiles_nothing(self) -> bool:
        """Return whether no Ruby is compiled: what a killed run left may stay."""
        compiled = self.node.compiled
        return not (compiled / "wanted").exists() and not processes_with(str(compiled))

    def told(self) -> dict[str, Any]:
        """Wait for the run's end; return the result that the agent gets."""
        # Before the first run, a fork server loads Puppet's library at low priority.
        end: dict[str, Any] = json.loads(read_line(self._host, PATIENCE))
        return end

    def run(self, how: str = "run") -> dict[str, Any]:
        self.begin(how)
        return self.over()

    def record(self, run: str) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(
            (self.node.state / "runs" / run / "status.json").read_text()
        )
        return status

    def text(self, run: str) -> str:
        """Return Puppet's output in a run."""
        return (self.node.state / "runs" / run / "log").read_text()

    def end(self) -> None:
        """End the host, and with it the server."""
        self._host.communicate(timeout=PATIENCE)
