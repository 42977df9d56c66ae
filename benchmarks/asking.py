"""The cost of queries in a complete agent, and of the same PQL in a real PuppetDB.

    memory    an agent that builds its view of a fleet's entries from nothing, at its peak; and an
              agent that was restarted with that view, after queries
    role      `servers_with_role` from Ruby through the agent's socket, one node in 500, p50: the
              module's own Ruby, the whole answer parsed
    pql       `inventory[certname] { facts.role = "…" }` for a rare role and a common one, through
              the agent's socket and from PuppetDB over HTTP on one connection, alternating, p50;
              the answers are compared
    servers   the memory of PuppetDB and PostgreSQL with the same facts

Facts are real Facter output, varied, as in `inventory.py`. The output compares results with bars.
Needs root, Puppet, and the bus's server; `--puppetdb` also what `puppetdb.py` needs.

    benchmarks/asking.py [--nodes 10000] [--facts 14000] [--puppetdb]
"""

import argparse
import asyncio
import http.client
import json
import os
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # for the servers of the tests

from engines import Store, store
from inventory import ROLES, Made, bar, fill, name_of, run_of
from puppetdb_server import STAMP, PuppetDb, running
from real_agents import Node, wait_until

from localpuppet.fleet.inventory.facts import FactSelection, entry_of
from localpuppet.fleet.inventory.view import FILE

QUESTIONS = 60
LOADERS = 8
# Nodes that PuppetDB loads by commands.
MODELS = 40
LOADING = 1800.0
MIB = 1024 * 1024
MODULE = Path(__file__).parent.parent / "modules" / "localpuppet" / "localpuppet" / "lib"
_RUBY = """
require 'puppet'
require 'puppet_x/localpuppet/inventory'
times = (1..%d).map do
  begun = Process.clock_gettime(Process::CLOCK_MONOTONIC)
  found = PuppetX::Localpuppet::Inventory.ask('servers_with_role', ['rare'])
  raise 'no nodes' if found.empty?
  Process.clock_gettime(Process::CLOCK_MONOTONIC) - begun
end
puts times.sort[times.size / 2] * 1000
"""
_COPY = """
CREATE TEMPORARY TABLE copies (number bigint, name text, model text, role jsonb);
INSERT INTO copies VALUES {copies};
INSERT INTO certnames (certname) SELECT name FROM copies;
INSERT INTO factsets (certname, timestamp, environment_id, hash, producer_timestamp, paths_hash,
                      stable, stable_hash, volatile)
SELECT name, timestamp, environment_id, sha256(name::bytea), producer_timestamp, paths_hash,
       jsonb_set(stable, '{{role}}', role), sha256(name::bytea), volatile
FROM copies JOIN factsets ON certname = model;
"""


def memory(pid: int, what: str) -> float:
    """Return a process's memory in MiB: `VmHWM` or `VmRSS`."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{what}:")) / 1024


def pss(pid: int) -> float:
    """Return a process's memory in MiB, with its part of shared memory."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def family(pid: int) -> list[int]:
    """Return a process and those that it started."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(one for child in children for one in family(int(child)))]


class Agent:
    """A complete agent with a view of the fleet.

    Args:
        at: The bus.
        directory: The directory of its root.
        made: The fleet; its pinned keys become the agent's.
    """

    def __init__(self, at: Store, directory: Path, made: Made) -> None:
        self._node = Node(directory, "asker.example.com", at.settings, site="")
        trusted = self._node.root / "trusted"
        trusted.mkdir(exist_ok=True)
        for path in (made.directory / "trusted").iterdir():
            path.rename(trusted / path.name)
        self._nodes = made.nodes
        self.socket = self._node.root / "var" / "agent.sock"

    @property
    def pid(self) -> int:
        """Its process."""
        return self._node.pid

    def start(self) -> float:
        """Start it; return seconds until its view is whole and current."""
        begun = time.time()
        self._node.start()
        wait_until(lambda: self._is_current(begun), "the view is not made", seconds=LOADING)
        return time.time() - begun

    def stop(self) -> None:
        """End it."""
        self._node.stop()

    def pql(self, query: str) -> list[str]:
        """Ask through its socket; return the names."""
        line = {"verb": "query", "function": "puppetdb_query", "arguments": [query], "run": None}
        with socket.socket(socket.AF_UNIX) as one:
            one.connect(str(self.socket))
            one.sendall(json.dumps(line).encode() + b"\n")
            with one.makefile("rb") as answers:
                reply = json.loads(answers.readline())
        return [row["certname"] for row in reply["answer"]]

    def ruby(self) -> float:
        """Return the median of milliseconds of a question from Ruby."""
        done = subprocess.run(
            ["ruby", "-I", str(MODULE), "-e", _RUBY % QUESTIONS],  # noqa: S607
            env={**os.environ, "LOCALPUPPET_SOCKET": str(self.socket)},
            capture_output=True,
            text=True,
            check=True,
        )
        return float(done.stdout)

    def _is_current(self, begun: float) -> bool:
        path = self._node.root / "var" / FILE
        if not path.exists():
            return False
        connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        try:
            current = connection.execute("SELECT current FROM state").fetchone()
            count = connection.execute("SELECT count(*) FROM entries").fetchone()
        except sqlite3.OperationalError:
            return False
        finally:
            connection.close()
        return bool(count[0] >= self._nodes and current and (current[0] or 0) > begun)


def loaded(server: PuppetDb, made: Made, real: dict[str, Any], least: int) -> None:
    """Give PuppetDB the facts of the whole fleet.

    The first nodes are loaded by commands. The others are copies of them in PostgreSQL, each with
    its own name and role, because commands for 10,000 nodes take a quarter of an hour.
    """

    def load(number: int) -> None:
        entry = entry_of(run_of(number, real, least, roles=roles_of(number, made)), FactSelection())
        server.replace_facts(
            {
                "certname": str(entry.node),
                "environment": "production",
                "producer_timestamp": STAMP,
                "producer": None,
                "values": {**entry.facts, "role": roles_of(number, made)[0]},
            }
        )

    with ThreadPoolExecutor(LOADERS) as loaders:
        list(loaders.map(load, range(min(MODELS, made.nodes))))
    copies = ",".join(
        f"({number}, '{name_of(number)}', '{name_of(number % MODELS)}', "
        f"'{json.dumps(roles_of(number, made)[0])}'::jsonb)"
        for number in range(MODELS, made.nodes)
    )
    if copies:
        server.execute(_COPY.format(copies=copies))
    server.execute("ANALYZE;")


def roles_of(number: int, made: Made) -> list[Any]:
    """Return a node's roles, as `inventory.fill` gave them."""
    return ["rare"] if number % (made.nodes // 20 or 1) == 0 else [ROLES[number % 5]]


def alternating(ours: Callable[[], object], theirs: Callable[[], object]) -> tuple[float, float]:
    """Return the medians of milliseconds of two calls."""
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(QUESTIONS):
        for call, times in zip((ours, theirs), found, strict=True):
            begun = time.monotonic()
            call()
            times.append(1000 * (time.monotonic() - begun))
    return statistics.median(found[0]), statistics.median(found[1])


def beside(agent: Agent, made: Made, real: dict[str, Any], least: int) -> None:
    """Print the time of PuppetDB for the same question, and its memory."""
    with running() as server:
        begun = time.monotonic()
        loaded(server, made, real, least)
        print(f"PuppetDB took all facts in {time.monotonic() - begun:.0f} s")
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)

        def theirs(query: str) -> list[str]:
            connection.request("GET", "/pdb/query/v4?" + urllib.parse.urlencode({"query": query}))
            return [row["certname"] for row in json.loads(connection.getresponse().read())]

        for role in ("rare", "web"):
            query = f'inventory[certname] {{ facts.role = "{role}" }}'
            mine, other = agent.pql(query), theirs(query)
            if sorted(mine) != sorted(other):
                raise SystemExit(f"{query}: {len(mine)} nodes here, {len(other)} in PuppetDB")
            own, peer = alternating(lambda q=query: agent.pql(q), lambda q=query: theirs(q))  # type: ignore[misc]
            print(f"{query}: {len(mine)} nodes, {own:.1f} ms here, {peer:.1f} ms in PuppetDB")
            bar(f"PQL, {len(mine)} of {made.nodes} nodes, of PuppetDB's", own / peer, 0.2, "")
        everybody(server, agent)


def everybody(server: PuppetDb, agent: Agent) -> None:
    """Print the memory of both servers."""
    for what, pids in (
        ("agent", family(agent.pid)),
        ("PuppetDB (-Xmx512m)", family(server.pid)),
        ("PostgreSQL", family(server.database_pid)),
    ):
        print(f"memory, {what}: {sum(map(pss, pids)):.0f} MiB")


def measure(at: Store, asked: argparse.Namespace, directory: Path) -> None:
    """Print all of it."""
    told = subprocess.run(["facter", "--json"], capture_output=True, check=False)  # noqa: S607
    real = json.loads(told.stdout)
    made = Made(url=at.url, engine=at.engine, directory=directory, nodes=asked.nodes)
    asyncio.run(fill(made, real, asked.facts))
    agent = Agent(at, directory, made)
    print(f"{asked.nodes} nodes of {asked.facts} bytes of facts, {name_of(0)} and so on")
    try:
        taken = agent.start()
        print(f"a view from nothing in {taken:.1f} s")
        bar("memory of the agent that makes it, most", memory(agent.pid, "VmHWM"), 96, " MiB")
        agent.stop()
        print(f"current again after a restart in {agent.start():.1f} s")
        bar("servers_with_role from Ruby, p50", agent.ruby(), 5, " ms")
        if asked.puppetdb:
            beside(agent, made, real, asked.facts)
        bar("memory of an agent with the view, most", memory(agent.pid, "VmHWM"), 96, " MiB")
        print(f"its memory now: {memory(agent.pid, 'VmRSS'):.0f} MiB")
    finally:
        agent.stop()


def main(words: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=10_000, help="[10000]")
    parser.add_argument("--facts", type=int, default=14_000, help="bytes of JSON a node [14000]")
    parser.add_argument("--engine", choices=("nats-new", "nats", "etcd"), default="nats-new")
    parser.add_argument("--puppetdb", action="store_true", help="beside a real PuppetDB")
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="[/var/tmp]")  # noqa: S108
    asked = parser.parse_args(words)
    with (
        tempfile.TemporaryDirectory(dir=asked.directory) as name,
        store(asked.engine, asked.directory) as at,
    ):
        measure(at, asked, Path(name))


if __name__ == "__main__":
    main()
