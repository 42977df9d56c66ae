"""The cost of a rollout of a release to twenty real nodes of this machine, from one pack.

The benchmark packs a release of some modules once into a directory that all nodes read: `packages:
[DIR]`. With `localpuppet rollout run --release`, each of twenty roots stages the release in its
store, parses it with Puppet's parser, and runs it: real agents, real Puppet, one group. The
comparison is the minimal work, with the same number and concurrency: `tar` of the pack into a
directory for each node, Puppet's parser for the release, and bare `puppet apply` of the catalog.

CPU seconds include the agents and all their children. Needs root, Puppet and nats-server.

    benchmarks/rollout_release.py [--nodes 20] [--modules 20] [--engine nats-new|nats|etcd|sqlite]
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # for the servers of the tests

from engines import store
from real_agents import PUPPET, Node
from repositories import git
from rollouts import DISK, ENGINES, roll_out, turns

RELEASE = "shop/tags/r1"
FILES = 30  # manifests of a module
POLICY = (
    "policy default deny\n"
    "allow\tchoria=operator.example.com\tstatus disable enable runonce deploy:shop/tags/*\t*\t*\n"
)
LOCK = "version: 1\nmodules: {}\nsources: {}\n"
CLASS = "class %s(Integer $size = 1) {\n%s}\n"
BODY = "".join(
    f"  # what stands here is read, and does nothing: line {line}\n" for line in range(40)
)
_TICK = os.sysconf("SC_CLK_TCK")


def make_release(top: Path, modules: int) -> int:
    """Make a repository with a release, and return the size of the release in bytes."""
    for number in range(modules):
        manifests = top / f"module{number}" / "manifests"
        manifests.mkdir(parents=True)
        for file in range(FILES):
            name = f"module{number}::part{file}" if file else f"module{number}"
            path = manifests / (f"part{file}.pp" if file else "init.pp")
            path.write_text(CLASS % (name, BODY))
    (top / "manifest.yaml").write_text("{}\n")
    (top / "manifest.lock").write_text(LOCK)
    size = sum(file.stat().st_size for file in top.rglob("*") if file.is_file())
    git(top, "init", "-q", "--initial-branch", "main")
    git(top, "add", "--all")
    git(top, "commit", "-q", "-m", "shop")
    git(top, "tag", "-a", "-m", "shop", RELEASE.rpartition("/")[2])
    return size


def pack(root: Path, directory: Path) -> Path:
    """Pack the release of a root, and return the file."""
    directory.mkdir()
    command = [sys.executable, "-m", "localpuppet", "--root", str(root), "release", "package"]
    options = ["--format", "tar", "-o", str(directory)]
    subprocess.run([*command, RELEASE, *options], check=True, stdout=subprocess.DEVNULL)
    (found,) = directory.iterdir()
    return found


@contextmanager
def agents(directory: Path, settings: dict[str, Any], count: int) -> Iterator[list[Node]]:
    """Yield an operator, and nodes to which it may assign releases of the shop."""
    source = {"shop": {"git": f"file://{directory / 'shop'}"}}
    own = {**settings, "packages": [], "sources": source, "allow_file_urls": True}
    operator = Node(directory, "operator.example.com", own, site="")
    nodes = [Node(directory, f"node{n:02}.example.com", settings, site="") for n in range(count)]
    for node in nodes:
        node.obey(operator, POLICY)
        (node.root / "input.yaml").write_text("app: shop/assigned\nclasses: [module0, module1]\n")
    try:
        for node in nodes:
            node.start()
        yield [operator, *nodes]
    finally:
        for node in nodes:
            node.stop()


def cpu_of(nodes: Sequence[Node]) -> float:
    """Return the CPU seconds of agents and of their ended children."""
    total = 0
    for node in nodes:
        fields = Path(f"/proc/{node.pid}/stat").read_text().rpartition(")")[2].split()
        total += sum(map(int, fields[11:15]))
    return total / _TICK


def at_a_time(commands: Sequence[Sequence[str]]) -> float:
    """Return the seconds of concurrent commands."""

    def run(command: Sequence[str]) -> None:
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    begun = time.monotonic()
    with ThreadPoolExecutor(len(commands)) as pool:
        for _ in pool.map(run, commands):
            pass
    return time.monotonic() - begun


def bare(directory: Path, packed: Path, release: Path, count: int) -> tuple[float, float, float]:
    """Return the seconds of bare unpacking, parsing and runs of Puppet for a number of nodes."""
    places = [directory / f"bare{number}" for number in range(count)]
    for place in places:
        place.mkdir()
    own = [[f"--confdir={place}/conf", f"--vardir={place}/var"] for place in places]
    run = ["--modulepath", str(release), "-e", "include module0, module1"]
    return (
        at_a_time([["tar", "-xzf", str(packed), "-C", str(place)] for place in places]),
        at_a_time([[PUPPET, "parser", "validate", *each, str(release)] for each in own]),
        at_a_time([[PUPPET, "apply", *each, *run] for each in own]),
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=20, help="[20]")
    parser.add_argument("--modules", type=int, default=20, help="[20]")
    parser.add_argument("--engine", choices=(*ENGINES, "nats", "sqlite"), default="nats-new")
    options = parser.parse_args()
    count = options.nodes
    with tempfile.TemporaryDirectory(prefix="release-", dir=DISK) as name:
        directory = Path(name)
        with store(options.engine, directory) as at:
            settings = {**at.settings, "packages": [str(directory / "packs")]}
            with agents(directory, settings, count) as (operator, *nodes):
                size = make_release(directory / "shop", options.modules)
                packed = pack(operator.root, directory / "packs")
                print(f"load {os.getloadavg()[0]:.1f}; {options.engine}, {count} nodes")
                print(f"the release: {size / 1e6:.1f} MB, its pack {packed.stat().st_size} bytes")
                used = cpu_of(nodes)
                report, whole = roll_out(
                    operator.root, [node.name for node in nodes], "--release", RELEASE
                )
                used = cpu_of(nodes) - used
                found = turns(report)
                begun = datetime.fromisoformat(report["started_at"]).timestamp()
                first, last = min(start for start, _ in found), max(end for _, end in found)
                print(f"ready, held, and the release on all nodes: {first - begun:.1f} s")
                print(f"all have run: {last - first:.1f} s more")
                print(f"the whole command: {whole:.1f} s; CPU of the nodes {used:.1f} s")
                stores = sum(
                    file.stat().st_blocks * 512
                    for node in nodes
                    for file in (node.root / "var").rglob("*")
                    if file.is_file()
                )
                print(f"the state of all nodes on disk: {stores / 1e6:.1f} MB")
        unpack, parse, apply = bare(directory, packed, directory / "shop", count)
        print(
            f"bare, {count} at a time: tar {unpack:.1f} s, parser {parse:.1f} s,"
            f" apply {apply:.1f} s"
        )


if __name__ == "__main__":
    main()
