"""Six real nodes, dashboard and API under disturbances for a while: nothing leaks.

`SOAK_MINUTES` is the length: ten in `scripts/slow`, 60 before a release. `SOAK_REPORT` names a
file for what was measured. A sixth of the time is for
warming up; what processes have then is compared with what they have at the end.
"""

import json
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.machine.process_table import SystemProcessTable
from tests.node.cli.preview.control import ControlRepository
from tests.rigs.buses import SHORT
from tests.rigs.fleet import Fleet
from tests.rigs.long import LONG
from tests.rigs.member import Member
from tests.rigs.node import Done
from tests.rigs.preloaded import OWN_PYTHON
from tests.rigs.waiting import PATIENCE
from tests.scenarios.test_rollouts import site_of
from tests.web.dashboard.test_command import Page

MINUTES = float(os.environ.get("SOAK_MINUTES", "10"))
# Pages that the allocator keeps differ from time to time.
MAX_GROWTH = 1.1
ALLOCATOR = 4 * 1024 * 1024
# A connection of a browser, and a request in progress, more or less.
FEW = 4

pytestmark = [pytest.mark.puppet, LONG]
POLICY = """policy default deny
allow\tchoria=a.example.com\tstatus deploy:app/tags/* values older\t*\t*
allow\tchoria=a.example.com\tdisable enable runonce trigger\t*\t*
"""
CLASS = """class app(String $root) {
  file { "${root}/content": content => "%s ${facts['uptime_seconds']}\\n" }
  exec { '/bin/sleep 1': }
}
"""
RELEASES = ("r1", "r2")
# The exit code of a run that another run excludes.
BUSY = 75
# Temporary files of durable writes: see `base.machine.files`.
TEMPORARY = re.compile(r"\..*\.[0-9a-f]{12}")


@dataclass(frozen=True)
class Usage:
    """The bytes and file descriptors of a process while no run is in progress."""

    memory: int
    descriptors: int

    @classmethod
    def of(cls, pid: int) -> "Usage":
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        (pss,) = re.findall(r"^Pss:\s+(\d+) kB", rollup, re.MULTILINE)
        return cls(int(pss) * 1024, len(list(Path(f"/proc/{pid}/fd").iterdir())))


def processes_of(root: Path) -> list[int]:
    """Return the processes whose environment or command line names this root."""
    pids = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
            if f"{root}/".encode() in words or f"LOCALPUPPET_ROOT={root}\0".encode() in words:
                pids.append(int(process.name))
    return sorted(pids)


@dataclass
class SoakFleet:
    """Six nodes with real Puppet, an operator with dashboard and API, and what disturbs them."""

    fleet: Fleet  # the fleet, on NATS
    control: ControlRepository  # the control repository of the previews
    rollouts: int = 0  # the number of rollouts so far
    nodes: list[Member] = field(default_factory=list)

    def begin(self) -> None:
        """Make all nodes, assign the first release, and serve the dashboard."""
        self.fleet.bus.timeout = SHORT
        self.operator = self.fleet.add_one("a")
        for number in range(1, 7):
            node = self.fleet.add_one(
                f"n{number}",
                puppet=True,
                agent={"run_interval": "1m"},
                inventory={"catalogs": True},
            )
            for tag in RELEASES:
                node.node.release(tag, CLASS % tag)
            node.node.want("assigned", root=str(node.root))
            node.node.write("policies/puppet.policy", POLICY)
            self.nodes.append(node)
        first, second, third = self.nodes[:1], self.nodes[1:3], self.nodes[3:]
        for member in self.fleet.members:
            member.node.inside = OWN_PYTHON
        self.site = str(self.operator.node.write("site.yaml", site_of(first, second, third)))
        self.fleet.start()
        self.page = Page(self.operator, "--actions", "--puppetdb", "127.0.0.1:0")
        self.roll_out()

    @property
    def release(self) -> str:
        """The last release that all nodes were assigned."""
        return f"app/tags/{RELEASES[(self.rollouts - 1) % 2]}"

    def _rollout(self) -> list[str]:
        self.rollouts += 1
        chosen = ["--site", self.site, "--release", self.release, "--allow-older"]
        return ["rollout", "run", *chosen, "--json"]

    # Each of these ends when the fleet has recovered.

    def roll_out(self) -> None:
        """Roll out the other release to all nodes, in order."""
        self._check(self.operator.run(*self._rollout()))

    def kill_a_rollout(self) -> None:
        """Kill the controller in the middle of a rollout, and resume."""
        before = self._rollout_ids()
        process = self.operator.node.start(*self._rollout())
        self.operator.node.wait_until(lambda: self._rollout_ids() != before or process.poll())
        process.send_signal(signal.SIGKILL)
        self.operator.node.finish(process)
        self._check(self.operator.run("rollout", "resume", "--json"))

    def _rollout_ids(self) -> list[str]:
        listed = self.operator.run("rollout", "list", "--json").json["rollouts"]
        return [rollout["id"] for rollout in listed]

    def _check(self, done: Done) -> None:
        assert (done.code, done.json["state"]) == (0, "done"), done.out + done.err

    def kill_an_agent(self) -> None:
        """Kill the agent of the first node, and start it again."""
        self.nodes[0].kill()
        self.nodes[0].start()
        self.fleet.present(self.nodes[0])

    def kill_a_run(self) -> None:
        """Kill Puppet during a run of the second node; the next run succeeds."""
        node = self.nodes[1]
        process = node.node.start("apply")
        pid = node.node.wait_running()["puppet"]["pid"]
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        node.node.finish(process)
        self.apply(node)

    def apply(self, node: Member) -> None:
        """Have a run of a node succeed; its timer may have started one at the same time."""

        def succeeded() -> bool:
            done = node.run("apply")
            assert done.code in (0, BUSY), done.out + done.err
            return done.code == 0

        node.node.wait_until(succeeded)

    def kill_the_server(self) -> None:
        """Kill the bus while nodes run."""
        self.fleet.bus.server.kill()
        self.apply(self.nodes[2])
        self.fleet.bus.server.start()
        self.fleet.present(*self.nodes)

    def freeze_the_server(self) -> None:
        """Let the bus hang while a node runs."""
        self.fleet.bus.server.freeze()
        try:
            self.apply(self.nodes[3])
        finally:
            self.fleet.bus.server.thaw()
        self.fleet.present(*self.nodes)

    def preview(self) -> None:
        """Preview a branch, with an old cache."""
        places = ["--dir", str(self.control.path), "--captures", str(self.control.nodes)]
        done = self.operator.run("preview", "main...exporter", *places, "--json", code=1)
        assert len(done.json["groups"]) == 1

    def read(self) -> None:
        """Read all views of the dashboard, and query the API."""
        for path in ("/", "/nodes", "/runs", "/rollouts", "/audit", "/nodes.json"):
            self.page.get(path)
        for path in ("nodes", "reports", "facts?limit=100", "events", "resources?limit=10"):
            connection = HTTPConnection("127.0.0.1", self.page.api_port, timeout=PATIENCE)
            try:
                connection.request("GET", f"/pdb/query/v4/{path}")
                answer = connection.getresponse()
                body = answer.read()
                assert answer.status == 200, body
                assert json.loads(body), path
            finally:
                connection.close()

    @property
    def disturbances(self) -> Sequence[Callable[[], None]]:
        """The disturbances, one after the other."""
        return (
            self.read,
            self.kill_an_agent,
            self.roll_out,
            self.kill_a_run,
            self.kill_the_server,
            self.preview,
            self.kill_a_rollout,
            self.freeze_the_server,
        )

    def rest(self) -> None:
        """Wait until each node is idle, without holds, and its last run succeeded."""

        def resting() -> bool:
            listed = {node["node"]: node for node in self._listed()}
            return all(
                (node := listed[str(member.name)])["state"] == "idle"
                and node["holds"] == []
                and node["last_run"]["outcome"] in ("changed", "unchanged")
                and node["last_run"]["release"] == self.release
                for member in self.nodes
            )

        self.operator.node.wait_until(resting)

    def _listed(self) -> list[dict[str, Any]]:
        nodes: list[dict[str, Any]] = self.operator.run("nodes", "--json").json["nodes"]
        return nodes

    def usage(self) -> dict[str, Usage]:
        """Return what each process has that nothing has killed since the start.

        The processes are the agents of the last three nodes, the operator's, and the dashboard.
        """
        pids = {str(node.name): node.process for node in [self.operator, *self.nodes[3:]]}
        agents = {name: process.pid for name, process in pids.items() if process is not None}
        return {
            name: Usage.of(pid) for name, pid in {**agents, "web": self.page.process.pid}.items()
        }

    def process_counts(self) -> dict[str, int]:
        """Return how many processes each agent is and has below it: fork servers, and no run."""
        table = SystemProcessTable()
        return {
            str(node.name): len(table.family(table.identify(node.process.pid)))
            for node in self.nodes
            if node.process is not None
        }

    def temporary_files(self) -> list[str]:
        """Return what durable writes have left in any root."""
        return [
            str(path)
            for member in [self.operator, *self.nodes]
            for path in (member.root / "var").rglob(".*")
            if TEMPORARY.fullmatch(path.name)
        ]

    def end(self) -> None:
        """End all processes in good order."""
        assert self.page.end(signal.SIGINT) == 0
        for member in [*self.nodes, self.operator]:
            assert member.stop() == 0, member.log


def grown(before: dict[str, Usage], after: dict[str, Usage]) -> list[str]:
    """Return what has grown."""
    return [
        f"{name}: {old} -> {new}"
        for name, old in before.items()
        if (new := after[name]).memory > old.memory * MAX_GROWTH + ALLOCATOR
        or new.descriptors > old.descriptors + FEW
    ]


def test_nothing_leaks_under_disturbances(
    nats_fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    soak = SoakFleet(nats_fleet, ControlRepository(tmp_path))
    soak.begin()
    begun = time.monotonic()
    warm: tuple[dict[str, Usage], dict[str, int]] | None = None
    number = 0
    while time.monotonic() < begun + 60 * MINUTES or warm is None:
        soak.disturbances[number % len(soak.disturbances)]()
        number += 1
        if warm is None and time.monotonic() > begun + 10 * MINUTES:
            soak.rest()
            warm = soak.usage(), soak.process_counts()
    soak.rest()
    usage, counts = soak.usage(), soak.process_counts()
    report = f"{number} disturbances\nwarm {warm}\nend  {usage} {counts}\n"
    if file := os.environ.get("SOAK_REPORT"):
        Path(file).write_text(report)
    assert grown(warm[0], usage) == []
    assert {name: counts[name] for name in counts if counts[name] > warm[1][name]} == {}
    assert soak.temporary_files() == []
    soak.end()
    roots = [member.root for member in nats_fleet.members]
    assert {root.name: pids for root in roots if (pids := processes_of(root))} == {}
    assert list(temporary.iterdir()) == []
