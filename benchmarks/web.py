"""What the page costs: time of the server for a view, memory, disk, a change until it is told.

A memory of --days days of runs, one every half hour a node, and an inventory of as many nodes are
made; then the page's own application answers in this process, without a network.

    overview, nodes, node, failures, releases, csv
                                  milliseconds of the server, median and 95 %, a change before each
    query                         the same for a list that is filtered by an expression
    change                        from a presence entry to the event that tells pages
    memory, disk                  of the process once it has answered, and of fleet.sqlite

    benchmarks/web.py [--nodes N] [--days D] [--rounds R]
"""

import argparse
import asyncio
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # for the doubles of the tests

from localpuppet.web.ended import HOUR, Ended
from localpuppet.web.kinds import Kind
from localpuppet.web.live import Live
from tests.inventory.entries import entry
from tests.web.site import Site, names, run_id, status

HALF_HOUR = HOUR / 2
ROLES = ("web", "db", "cache", "lb", "mail")
FACTS = {f"group{number}": {f"fact{n}": "x" * 40 for n in range(20)} for number in range(20)}
TOGETHER = 20_000


def ends(nodes: list[str], now: float, days: float) -> Iterator[Ended]:
    """Yield the ends of all runs, the oldest first."""
    for step in range(int(days * 86400 / HALF_HOUR), 0, -1):
        for number, node in enumerate(nodes):
            at = now - step * HALF_HOUR + number / len(nodes)
            kind = (Kind.FAILED, Kind.CHANGED, Kind.UNCHANGED)[min(2, (step + number) % 20)]
            yield Ended(node=node, run=run_id(at), at=at, kind=kind, app="web/tags/r7", why="")


def fill(site: Site, nodes: list[str], days: float) -> int:
    """Write down all runs; return how many there are."""
    batch: list[Ended] = []
    count = 0
    for one in ends(nodes, site.now(), days):
        batch.append(one)
        if len(batch) == TOGETHER:
            site.memory.write([], batch)
            count += len(batch)
            batch.clear()
    site.memory.write([], batch)
    return count + len(batch)


def told_by(node: str, number: int, at: float) -> dict[str, Any]:
    """Return what a node says of itself; one in ten failed, by one of twenty mistakes."""
    fault = {"error": f"Could not find {number % 20}", "resource": "", "place": "init.pp:3"}
    failed = {"outcome": "failed", "category": "no_report", "fault": fault}
    return status(node, at, last={} if number % 10 else failed, release="ab" * 32)


def shown(title: str, seconds: list[float]) -> None:
    """Print a row of the table."""
    ordered = sorted(seconds)
    late = ordered[int(len(ordered) * 0.95)]
    print(f"{title:10} {statistics.median(ordered) * 1000:8.1f} ms {late * 1000:8.1f} ms at 95 %")


def timed(rounds: int, work: Callable[[], object], before: Callable[[int], None]) -> list[float]:
    """Return how long a piece of work takes, once for each round."""
    found = []
    for number in range(rounds):
        before(number)
        begun = time.perf_counter()
        work()
        found.append(time.perf_counter() - begun)
    return found


async def told(site: Site, node: str, rounds: int) -> list[float]:
    """Return how long it takes from a presence entry to the event."""
    events = Live(site.fleet, asyncio.Event()).events(None)
    await anext(events)
    found = []
    for number in range(rounds):
        begun = time.perf_counter()
        site.tell(status(node, site.now(), state=("applying", "idle")[number % 2]))
        await anext(events)
        found.append(time.perf_counter() - begun)
    return found


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--days", type=float, default=90.0)
    parser.add_argument("--rounds", type=int, default=30)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        site = Site(Path(directory))
        nodes = list(names(asked.nodes))
        begun = time.perf_counter()
        count = fill(site, nodes, asked.days)
        print(f"{count} ends of {len(nodes)} nodes written in {time.perf_counter() - begun:.0f} s")
        site.tell(*(told_by(node, number, site.now()) for number, node in enumerate(nodes)))
        entries = [
            entry(node, at=site.now(), roles=(ROLES[number % 5],), facts=FACTS)
            for number, node in enumerate(nodes)
        ]
        site.list_(*entries)

        def change(number: int) -> None:
            site.fleet.listed({nodes[0]: (f"web{number}",)}, all_=nodes)

        with site.visitor() as client:
            for title, url in (
                ("overview", "/"),
                ("nodes", "/nodes?sort=-ended&page=3"),
                ("node", f"/nodes/{nodes[len(nodes) // 2]}"),
                ("failures", "/failures"),
                ("releases", "/releases"),
                ("csv", "/nodes.csv"),
                ("query", "/nodes?q=role%3Dweb"),
            ):
                assert client.get(url).status_code == 200
                shown(title, timed(asked.rounds, partial(client.get, url), change))
        shown("change", asyncio.run(told(site, nodes[0], asked.rounds)))
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        disk = sum(file.stat().st_size for file in (site.directory / "web").iterdir())
        print(f"memory {memory:.0f} MiB, disk {disk / 1024**2:.0f} MiB")


if __name__ == "__main__":
    main()
