"""The speed of triggers and the cost of agents, compared with bare clients and the predecessor.

    receipt   from the call of `send` for N nodes until each node's agent has the message, with N
              simulated agents in four other processes; the peer is a bare client of the same server
              (`bare_clients.py`), in alternating phases; server CPU per trigger, and memory per
              node. SQLite has no peer, because a file has no client but its users.
    idle      an idle real agent: resident memory, CPU; compared with `etcdctl watch`
    start     from the event that notifies a `trigger` in Puppet on one node until Puppet's process
              starts on another, both with real agents (see `real_agents.py`); compared, on etcd in
              the same rounds, with the predecessor's loop, which gets an HTTP request from Puppet
    storm     10,000 triggers of 100 senders during a run: following runs, and memory
    restart   kill -9 of the server, and the time from its recovery until each agent has received a
              trigger that was sent after that

Servers are Debian's, on free ports of 127.0.0.1, with their data below --directory; the newest
nats-server with `--engine nats-new`. The output compares results with bars. Needs root, Puppet,
etcd, nats-server and task-spooler, and lists missing ones first; takes about ten minutes.

    benchmarks/triggers.py [--only PART ...] [--engine ENGINE ...] [--nodes N ...] [--rounds R]
"""

import argparse
import asyncio
import resource
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # for the servers of the tests

from engines import Store, store
from fleets import Fleet, names, sender, until_heard, usage
from real_agents import PUPPET, TSP, Node, Predecessor, wait_until
from storms import storm

from tests.rigs.servers import ETCD, ETCDCTL, NEW_NATS, OLD_NATS

PARTS = ("receipt", "idle", "start", "storm", "restart")
ENGINES = ("sqlite", "etcd", "nats")
DISK = Path("/var/tmp")  # noqa: S108 - a disk: /tmp may be memory
BURSTS = 40
SETTLE = 3.0
IDLE = 20.0
SINGLES = 100  # bursts for a single node: each takes milliseconds
# SQLite is for one machine; the kernel gives 128 inotify instances a user.
MOST_ON_SQLITE = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of the command line."""

    engines: Sequence[str]
    nodes: Sequence[int]
    rounds: int
    directory: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Figures of one fleet: milliseconds, microseconds per trigger, KiB per node."""

    p50: float
    p99: float
    last: float
    cpu: float
    memory: float


async def phase(at: Store, count: int, *, bare: bool) -> Phase:
    """Start a fleet, send to all its nodes several times, and stop it."""
    nodes = names(count)
    bursts = SINGLES if count == 1 else BURSTS
    before = usage(at.pid) if at.pid else None
    async with (
        sender(at.engine, at.url, bare=bare) as sending,
        Fleet(at.engine, at.url, nodes, bare=bare) as fleet,
    ):
        await fleet.expect()
        await until_heard(fleet, sending, SETTLE)
        await asyncio.sleep(SETTLE)
        begun = usage(at.pid) if at.pid else None
        times, lasts = [], []
        for _ in range(bursts):
            await fleet.expect()
            sent = time.monotonic()
            await sending.send(nodes)
            found = [when - sent for when in (await fleet.receipts()).values()]
            assert len(found) == count, f"only {len(found)} of {count} heard it"
            times += found
            lasts.append(max(found))
        ended = usage(at.pid) if at.pid else None
    cuts = statistics.quantiles(times, n=100, method="inclusive")
    cpu = memory = 0.0
    if before and begun and ended:
        cpu = (ended.cpu - begun.cpu) / bursts / count * 1e6
        memory = max(0.0, begun.memory - before.memory) / count * 1024
    return Phase(
        p50=cuts[49] * 1e3,
        p99=cuts[98] * 1e3,
        last=statistics.median(lasts) * 1e3,
        cpu=cpu,
        memory=memory,
    )


async def receipt(options: Options) -> None:
    """Print the delay of messages."""
    print("| engine | nodes | client | p50 | p99 | last | server's CPU a trigger | memory a node |")
    print("|---|---|---|---|---|---|---|---|")
    bars = []
    for engine in options.engines:
        for count in options.nodes:
            if engine == "sqlite" and count > MOST_ON_SQLITE:
                continue
            ours, peer = await _phases(engine, count, options)
            found = [("localpuppet", ours), ("bare", peer)] if peer else [("localpuppet", ours)]
            for client, phases in found:
                middle = _medians(phases)
                server = "" if engine == "sqlite" else f"{middle.cpu:.0f} us"
                # A server keeps its memory, so only its first fleet shows it.
                memory = "" if engine == "sqlite" else f"{phases[0].memory:.0f} kiB"
                print(
                    f"| {engine} | {count} | {client} | {middle.p50:.1f} ms | {middle.p99:.1f} ms"
                    f" | {middle.last:.1f} ms | {server} | {memory} |",
                    flush=True,
                )
            if peer and count == max(options.nodes):
                ratio = _medians(ours).p99 / _medians(peer).p99
                bars.append(bar(f"{engine}, {count} nodes: p99 to bare's", ratio, 1.5, ""))
            elif engine == "sqlite" and count == 1:
                bars.append(bar("sqlite: p50", _medians(ours).p50, 5, " ms"))
    print("", *bars, sep="\n")


async def _phases(engine: str, count: int, options: Options) -> tuple[list[Phase], list[Phase]]:
    """Return the phases of localpuppet's and of bare clients; the order changes with each round."""
    found: dict[bool, list[Phase]] = {False: [], True: []}
    with store(engine, options.directory) as shared:
        for number in range(options.rounds):
            order = [False, True] if number % 2 else [True, False]
            for bare in order if engine != "sqlite" else [False]:
                if number:
                    found[bare].append(await phase(shared, count, bare=bare))
                    continue
                with store(
                    engine, options.directory
                ) as fresh:  # a new server, whose memory only this fleet uses
                    found[bare].append(await phase(fresh, count, bare=bare))
    return found[False], found[True]


def _medians(phases: Sequence[Phase]) -> Phase:
    names_of = ("p50", "p99", "last", "cpu", "memory")
    return Phase(
        **{name: statistics.median(getattr(one, name) for one in phases) for name in names_of}
    )


async def idle(options: Options) -> None:
    """Print the cost of an idle agent."""
    print("| agent | memory | of it its own | CPU |\n|---|---|---|---|")
    bars = []
    for engine in options.engines:
        with store(engine, options.directory) as at, nodes(at, options.directory) as (node, _):
            memory, own, cpu = await _watched(node.pid)
        print(f"| {engine} | {memory:.1f} MiB | {own:.1f} MiB | {cpu:.3f} % |", flush=True)
        bars.append(bar(f"{engine}: memory", memory, 45, " MiB"))
        bars.append(bar(f"{engine}: CPU", cpu, 0.1, " %"))
    with store("etcd", options.directory) as at:
        peer = Predecessor(at_least(options.directory / "idle"), at.url, "/old/b")
        try:
            memory, own, cpu = await _watched(peer.watcher)
        finally:
            peer.stop()
    print(f"| etcdctl watch | {memory:.1f} MiB | {own:.1f} MiB | {cpu:.3f} % |")
    print("", *bars, sep="\n")


async def _watched(pid: int) -> tuple[float, float, float]:
    """Return resident MiB, unshared MiB, and percent of a core."""
    await asyncio.sleep(SETTLE)
    begun = _ran(pid)
    await asyncio.sleep(IDLE)
    cpu = (_ran(pid) - begun) / IDLE * 100
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    sizes = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines}
    return sizes["Rss"], sizes["Private_Clean"] + sizes["Private_Dirty"], cpu


def _ran(pid: int) -> float:
    """Return seconds of CPU of all threads, to the nanosecond."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


@contextmanager
def nodes(at: Store, parent: Path) -> Iterator[tuple[Node, Node]]:
    """Yield two nodes that trust each other, with agents; the first one's site triggers the other.

    The time of the notifying event is in the file `sent` of the first one's root.
    """
    with tempfile.TemporaryDirectory(dir=parent) as name:
        directory = Path(name)
        sent = directory / "a.example.com" / "sent"
        peer = f"put_key {{ '/old/b': server => '{at.url}' }}" if at.engine == "etcd" else ""
        told = " ~> Put_key['/old/b']" if peer else ""
        first = Node(
            directory,
            "a.example.com",
            at.settings,
            site=f"""
              stamp {{ '{sent}': when => now }}
              if $facts['told'] == 'peer' {{ {peer} Stamp['{sent}']{told} }}
              else {{ Stamp['{sent}'] ~> trigger {{ 'b': hosts => ['b.example.com'] }} }}""",
        )
        second = Node(directory, "b.example.com", at.settings, site="notify { 'run': }")
        for one, other in ((first, second), (second, first)):
            one.trust(other)
        try:
            for one in (first, second):
                one.start()
            yield first, second
        finally:
            for one in (first, second):
                one.stop()


async def start(options: Options) -> None:
    """Print the time from an event in Puppet on one node to Puppet's start on another."""
    print("| from a notify to Puppet's start | median | least | most |\n|---|---|---|---|")
    bars = []
    for engine in options.engines:
        with store(engine, options.directory) as at, nodes(at, options.directory) as pair:
            times, peers = _starts(at, pair, options)
        print(_spread(engine, times), flush=True)
        if peers:
            print(_spread("etcdctl watch, tsp", peers), flush=True)
        bars.append(bar(engine, statistics.median(times), 50, " ms"))
    print("", *bars, sep="\n")


def _starts(
    at: Store, pair: tuple[Node, Node], options: Options
) -> tuple[list[float], list[float]]:
    """Return milliseconds of localpuppet and, on etcd, of the predecessor; the first warms up."""
    first, second = pair
    sent = first.root / "sent"
    times: dict[bool, list[float]] = {False: [], True: []}
    peer = None
    if at.engine == "etcd":
        peer = Predecessor(at_least(options.directory / "start"), at.url, "/old/b")
    try:
        time.sleep(SETTLE)
        for _ in range(options.rounds * 3 + 1):
            for loop in (False, True) if peer else (False,):
                starts = peer.starts if loop and peer else second.starts
                count = len(starts.read_text().split())
                first.apply({"FACTER_told": "peer"} if loop else {})
                wait_until(lambda: len(_lines(starts)) > count, "Puppet did not start")  # noqa: B023
                times[loop].append((int(_lines(starts)[count]) - int(sent.read_text())) / 1e6)
                second.rest()
                if loop and peer:
                    peer.rest()
    finally:
        if peer:
            peer.stop()
    return times[False][1:], times[True][1:]


def _lines(path: Path) -> list[str]:
    return path.read_text().split()


def _spread(name: str, times: Sequence[float]) -> str:
    median = statistics.median(times)
    return f"| {name} | {median:.1f} ms | {min(times):.1f} ms | {max(times):.1f} ms |"


async def storms(options: Options) -> None:
    """Print the results of a storm."""
    print("| engine | triggers | accepted | runs after it | memory before | most |")
    print("|---|---|---|---|---|---|")
    bars = []
    for engine in options.engines:
        with store(engine, options.directory) as at, nodes(at, options.directory) as (_, node):
            found = await storm(node, at.engine, at.url)
        print(
            f"| {engine} | {found.sent} | {found.accepted} | {found.runs}"
            f" | {found.before:.1f} MiB | {found.most:.1f} MiB |",
            flush=True,
        )
        bars.append(bar(f"{engine}: runs", found.runs, 2, ""))
        bars.append(bar(f"{engine}: memory", found.most - found.before, 64, " MiB more"))
    print("", *bars, sep="\n")


async def restart(options: Options) -> None:
    """Print the delay until agents receive messages again after their server was killed."""
    print("| engine | nodes | p50 | last |\n|---|---|---|---|")
    bars = []
    for engine in options.engines:
        for count in options.nodes if engine != "sqlite" else ():
            times = []
            for _ in range(options.rounds):
                with store(engine, options.directory) as at:
                    times.append(await _restarted(at, count))
            p50 = statistics.median(statistics.median(one) for one in times)
            last = statistics.median(max(one) for one in times)
            print(f"| {engine} | {count} | {p50:.2f} s | {last:.2f} s |", flush=True)
            bars.append(bar(f"{engine}, {count} nodes: last", last, 2, " s"))
    print("", *bars, sep="\n")


async def _restarted(at: Store, count: int) -> list[float]:
    """Return the seconds until each node received a message again."""
    assert at.server is not None
    async with (
        sender(at.engine, at.url, bare=False) as sending,
        Fleet(at.engine, at.url, names(count), bare=False) as fleet,
    ):
        await fleet.expect()
        await until_heard(fleet, sending, SETTLE)
        at.server.kill()
        await asyncio.sleep(1.0)
        at.server.start()
        healthy = time.monotonic()
        await fleet.expect()
        return [when - healthy for when in (await until_heard(fleet, sending, 0.5)).values()]


def bar(what: str, found: float, most: float, unit: str) -> str:
    """Return a line with the result and whether it reaches the bar."""
    word = "reached" if found <= most else "MISSED"
    return f"{word}: {what} {found:.3g}{unit} (bar {most:g}{unit})"


def at_least(path: Path) -> Path:
    """Return a path that does not exist yet."""
    return Path(tempfile.mkdtemp(prefix=path.name, dir=path.parent)) / path.name


def missing(parts: Sequence[str], engines: Sequence[str]) -> list[str]:
    """Return the missing programs of these parts."""
    servers = {"etcd": [ETCD], "nats": [OLD_NATS], "nats-new": [NEW_NATS]}
    needed = [program for engine in engines for program in servers.get(engine, ())]
    if {"idle", "start", "storm"} & set(parts):
        needed.append(Path(PUPPET))
    if "idle" in parts or ("start" in parts and "etcd" in engines):
        needed += [ETCD, ETCDCTL, Path(TSP)]  # the predecessor's loop; tsp is Debian's task-spooler
    return sorted({str(program) for program in needed if not program.exists()})


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", action="append", choices=PARTS, help="[all parts]")
    parser.add_argument("--engine", action="append", choices=(*ENGINES, "nats-new"), help="[three]")
    parser.add_argument("--nodes", type=int, action="append", help="[1, 100, 1000]")
    parser.add_argument("--rounds", type=int, default=3, help="of each measurement [3]")
    parser.add_argument("--directory", type=Path, default=DISK, help="[/var/tmp]")
    asked = parser.parse_args()
    gone = missing(asked.only or PARTS, asked.engine or ENGINES)
    if gone:
        parser.error(f"install first: {', '.join(gone)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that started processes end, too
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    parts: dict[str, Callable[[Options], Coroutine[Any, Any, None]]] = {
        "receipt": receipt,
        "idle": idle,
        "start": start,
        "storm": storms,
        "restart": restart,
    }
    with tempfile.TemporaryDirectory(prefix="triggers-", dir=asked.directory) as name:
        options = Options(
            engines=asked.engine or ENGINES,
            nodes=asked.nodes or (1, 100, 1000),
            rounds=asked.rounds,
            directory=Path(name),
        )
        for part in asked.only or PARTS:
            print(f"\n## {part}\n", flush=True)
            asyncio.run(parts[part](options))


if __name__ == "__main__":
    main()
