"""The overhead of a rollout over the runs of its nodes: `localpuppet rollout run`.

    real       four nodes with agents and real Puppet, one group with a trivial catalog: from the
               request to start the group until the last result arrived, minus the longest of the
               four runs
    simulated  a thousand nodes (`rollout_nodes.py`) whose runs take a second: the same for one
               group, and for a batch of twenty batches. For the complete command with one group:
               CPU seconds of the rollout controller, of the server and of the simulated nodes,
               which share the machine's cores

The times are those of the rollout journal. The output compares results with bars. Needs root,
Puppet, etcd and nats-server.

    benchmarks/rollouts.py [--only real|simulated] [--engine nats|nats-new|etcd ...] [--rounds R]
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # for the servers of the tests

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from engines import Store, store
from fleets import names, usage
from real_agents import Node, wait_until
from simulated_agents import BETWEEN

from localpuppet.base.formats.names import NodeName, SignerName
from localpuppet.fleet.app import FleetApp
from localpuppet.node.app import NodeApp

ENGINES = ("nats-new", "etcd")
PARTS = ("real", "simulated")
BARS = {"real": 0.3, "simulated": 1.0}
DISK = Path("/var/tmp")  # noqa: S108 - a disk: /tmp may be memory
SIMULATED = 1000
BATCHES = 20
SECONDS = 1.0
WORKERS = 4
POLICY = "policy default deny\nallow\tchoria=operator.example.com\t*\t*\t*\n"


def roll_out(root: Path, nodes: Sequence[str], *options: str) -> tuple[dict[str, Any], float]:
    """Roll out to nodes as one group, and return the report and the seconds of the command."""
    select = root / "nodes"
    select.write_text("\n".join(nodes))
    command = [sys.executable, "-m", "localpuppet", "--root", str(root), "rollout", "run"]
    command += ["--order", "none", "--nodes", ",".join(nodes), *options, "--json"]
    begun = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    taken = time.monotonic() - begun
    if done.returncode:
        raise SystemExit(f"the rollout exited {done.returncode}: {done.stdout} {done.stderr}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report, taken


def turns(report: dict[str, Any]) -> list[tuple[float, float]]:
    """Return the times in the journal at which each node run was requested and its end received."""
    return [
        (_seconds(one["started_at"]), _seconds(one["finished_at"]))
        for group in report["groups"]
        for one in group["runs"]
    ]


def _seconds(at: str) -> float:
    return datetime.fromisoformat(at).timestamp()


def real(engine: str, directory: Path, rounds: int) -> Iterator[float]:
    """Yield the seconds of each round minus the longest run."""
    with store(engine, directory) as at:
        operator = Node(directory, "operator.example.com", at.settings, site="")
        nodes = [
            Node(
                directory,
                f"node{number}.example.com",
                {**at.settings, "agent": {"run_interval": False, "warm": True}},
                site="",
            )
            for number in range(4)
        ]
        for node in nodes:
            node.obey(operator, POLICY)
        try:
            for node in nodes:
                node.apply()
                node.start()
            for node in nodes:
                socket = node.root / "var" / "agent" / "fork_server.sock"
                wait_until(socket.exists, "no fork server")
            for number in range(rounds + 1):
                report, _ = roll_out(operator.root, [node.name for node in nodes])
                found = turns(report)
                span = max(end for _, end in found) - min(start for start, _ in found)
                longest = max(node.runs[-1]["seconds"] for node in nodes)
                if number:  # the first warms up
                    yield span - longest
        finally:
            for node in nodes:
                node.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """A thousand nodes and their operator.

    Attributes:
        root: The root of an operator.
        nodes: The nodes of a rollout.
        workers: The processes of the nodes.
    """

    root: Path
    nodes: list[NodeName]
    workers: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of a thousand nodes in seconds.

    Attributes:
        group: The overhead over the run of a node, for one group of all nodes.
        batch: The same for a batch.
        whole: The same for the complete command with one group.
        cpu: CPU seconds of that command: rollout controller, server, nodes.
    """

    group: float
    batch: float
    whole: float
    cpu: tuple[float, float, float]


@contextmanager
def simulated_nodes(at: Store, directory: Path) -> Iterator[Simulated]:
    """Yield simulated nodes."""
    operator = Node(directory, "operator.example.com", at.settings, site="")
    trusted = FleetApp(NodeApp(str(operator.root))).identity.trusted
    pems = {}
    for name in names(SIMULATED):
        key = Ed25519PrivateKey.generate()
        trusted.pin(SignerName.parse(name), key.public_key())
        form = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        pems[str(name)] = key.private_bytes(*form).decode()
    workers = []
    for start in range(WORKERS):
        share = {name: pems[name] for name in list(pems)[start::WORKERS]}
        worker = subprocess.Popen(
            [sys.executable, str(Path(__file__).parent / "rollout_nodes.py")],
            stdin=subprocess.PIPE,
            text=True,
        )
        assert worker.stdin is not None
        spec = {"engine": at.engine, "url": at.url, "nodes": share, "seconds": SECONDS}
        worker.stdin.write(json.dumps(spec) + "\n")
        worker.stdin.flush()
        workers.append(worker)
    try:
        time.sleep(BETWEEN * SIMULATED / WORKERS + 10)
        pids = [worker.pid for worker in workers]
        yield Simulated(root=operator.root, nodes=names(SIMULATED), workers=pids)
    finally:
        for worker in workers:
            worker.communicate()


def used(at: Store, fleet: Simulated) -> tuple[float, float, float]:
    """Return the CPU seconds until now of the processes that `Cost.cpu` names."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    server = 0.0 if at.pid is None else usage(at.pid).cpu
    nodes = sum(usage(pid).cpu for pid in fleet.workers)
    return ended.ru_utime + ended.ru_stime, server, nodes


def simulated(engine: str, directory: Path, rounds: int) -> Iterator[Cost]:
    """Yield the cost of each round."""
    with store(engine, directory) as at, simulated_nodes(at, directory) as fleet:
        for _ in range(rounds):
            before = used(at, fleet)
            report, whole = roll_out(fleet.root, fleet.nodes)
            first, server, nodes = map(float.__sub__, used(at, fleet), before)
            found = turns(report)
            span = max(end for _, end in found) - min(start for start, _ in found) - SECONDS
            report, _ = roll_out(fleet.root, fleet.nodes, "--batch", str(SIMULATED // BATCHES))
            found = turns(report)
            begun = min(start for start, _ in found)
            batches = (max(end for _, end in found) - begun) / BATCHES - SECONDS
            yield Cost(group=span, batch=batches, whole=whole - SECONDS, cpu=(first, server, nodes))


def verdict(what: str, found: float, most: float) -> str:
    """Return a line with the result and whether it reaches the bar."""
    return f"{'reached' if found <= most else 'MISSED'}: {what} {found:.2f} s (bar {most:g} s)"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=PARTS, help="[both]")
    parser.add_argument("--engine", action="append", choices=(*ENGINES, "nats"), help="[two]")
    parser.add_argument("--rounds", type=int, default=3, help="of each [3]")
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    print(f"load {os.getloadavg()[0]:.1f}")
    for engine in options.engine or ENGINES:
        if options.only != "simulated":
            with tempfile.TemporaryDirectory(prefix="rollouts-", dir=DISK) as directory:
                beside = statistics.median(real(engine, Path(directory), options.rounds))
            print(verdict(f"{engine}, a group of 4 real nodes:", beside, BARS["real"]), flush=True)
        if options.only != "real":
            with tempfile.TemporaryDirectory(prefix="rollouts-", dir=DISK) as directory:
                costs = [*simulated(engine, Path(directory), options.rounds)]
            print_costs(engine, costs)


def print_costs(engine: str, costs: Sequence[Cost]) -> None:
    """Print the medians of rounds."""
    group, batch, whole = (
        statistics.median(getattr(one, name) for one in costs)
        for name in ("group", "batch", "whole")
    )
    first, server, nodes = (statistics.median(one.cpu[at] for one in costs) for at in range(3))
    bar = BARS["simulated"]
    print(verdict(f"{engine}, a group of {SIMULATED} simulated nodes:", group, bar))
    print(verdict(f"{engine}, each of {BATCHES} batches of them:", batch, bar))
    print(f"{engine}, the whole command, with holds: {whole:.2f} s more")
    cpu = f"orchestrator {first:.2f} s, server {server:.2f} s, simulated nodes {nodes:.2f} s"
    print(f"{engine}, CPU of that: {cpu}", flush=True)


if __name__ == "__main__":
    main()
