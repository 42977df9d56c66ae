"""The cost of the dashboard: `localpuppet web` as a process with a real bus and 90 days of runs.

The database has the rows that the dashboard writes: one run per node every half hour. Signed
presence and inventory entries of all nodes are on a bus of NATS. Then the benchmark starts the
dashboard and sends HTTP requests.

    overview … query   milliseconds of an answer, median and at 95 %; no answer is from a cache of
                       the server
    found              seconds until a new process of the dashboard shows all nodes
    paint              first contentful paint in Chromium, with an empty cache
    change             from the write of a node to the bus until the changed row in Chromium
    history            further seconds until the history of all nodes is loaded
    200 pages          part of a core for the server while 200 pages show the overview, and nodes
                       start and end runs at their usual rate; the same while they show all views
                       above; and while nothing changes
    memory, disk       of the process afterwards, and of fleet.sqlite

    benchmarks/web.py [--nodes N] [--days D] [--rounds R] [--pages P] [--seconds S]
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Timer

sys.path.insert(0, str(Path(__file__).parent.parent))  # for the rigs of the tests

from engines import store
from fleets import usage
from web_fleet import EVERY, Told, fleet, remember, root_of
from web_pages import OpenPages, Visitor, chromium

from localpuppet.web.dashboard.live import FRESH
from tests.rigs.node import Node

CHANGES = 10
PAINTS = 7
# Seconds after which newly opened pages have requested the changes since their load.
SETTLE = 5.0


def views(nodes: Sequence[str]) -> dict[str, str]:
    """Return the paths of the measured views."""
    lists = {f"by {order}": f"/nodes?sort={order}&page=3" for order in ("node", "state", "release")}
    node = f"/nodes/{nodes[len(nodes) // 2]}"
    return {
        "overview": "/",
        "node": node,
        "older": f"{node}?before=20261101T000000.000000Z-0000",
        **lists,
        "by outcome": "/nodes?sort=-outcome",
        "by end": "/nodes?sort=-finished_at",
        "failures": "/failures",
        "releases": "/releases",
        "90 days": "/?range=90d",
        "runs": "/runs",
        "its changes": f"/runs?result=changed&node={nodes[0]}",
        "rollouts": "/rollouts",
        "kicks": "/kicks",
        "drift": "/drift",
        "map": "/map",
        "audit": "/audit",
        "csv": "/nodes.csv",
        "query": "/nodes?q=role%3Dweb",
    }


def row(title: str, text: str, bar: str = "") -> None:
    """Print a row of the table."""
    print(f"{title:12} {text:34} {bar}", flush=True)


def spread(seconds: Sequence[float]) -> str:
    """Return the median and the 95th percentile."""
    ordered = sorted(seconds)
    late = ordered[int(len(ordered) * 0.95)]
    return f"{statistics.median(ordered) * 1000:7.1f} ms {late * 1000:8.1f} ms at 95 %"


def answers(visitor: Visitor, nodes: Sequence[str], rounds: int) -> None:
    """Measure each view, all of them in each round."""
    found: dict[str, list[float]] = {title: [] for title in views(nodes)}
    for _ in range(rounds):
        time.sleep(FRESH)
        for title, path in views(nodes).items():
            found[title].append(visitor.seconds(path))
    bars = {"overview": "150 ms; 300 ms with 10,000 nodes", "node": "50 ms", "older": "50 ms"}
    for title, seconds in found.items():
        row(title, spread(seconds), bars.get(title, ""))


def paints(visitor: Visitor, loop: asyncio.AbstractEventLoop, told: Told) -> None:
    """Measure the times at which a browser shows a page."""
    with chromium(visitor) as browser:
        row("paint", spread([browser.paint("/") for _ in range(PAINTS)]), "1 s")
        browser.go("/nodes?sort=node")
        delays = []
        for number in range(CHANGES):
            state = ("applying", "idle")[number % 2]
            written: list[float] = []

            def write(state: str = state, written: list[float] = written) -> None:
                written.append(time.time())
                asyncio.run_coroutine_threadsafe(told.present(1, state=state), loop)

            Timer(1.5, write).start()
            at = browser.changed(f"row-{told.nodes[1]}", state)
            delays.append(at - written[0])
        row("change", spread(delays), "1 s")


async def runs_of(told: Told) -> None:
    """Let nodes start and end runs at their usual rate, endlessly."""
    number = 0
    while True:
        await asyncio.sleep(EVERY / len(told.nodes) / 2)
        node = number // 2 % len(told.nodes)
        await (told.end_run(node) if number % 2 else told.present(node, state="applying"))
        number += 1


async def listeners(visitor: Visitor, told: Told, count: int, seconds: float) -> None:
    """Measure the cost of open pages for the server."""
    all_ = [path for title, path in views(told.nodes).items() if title != "csv"]
    for title, paths, changes in (
        (f"{count} pages", ["/"], True),
        ("of all views", all_, True),
        ("in peace", all_, False),
    ):
        pages = OpenPages(visitor)
        async with pages.open(count, paths):
            await asyncio.sleep(SETTLE)
            changing = asyncio.create_task(runs_of(told)) if changes else None
            before, looks, begun = usage(visitor.process.pid).cpu, pages.looks, time.monotonic()
            await asyncio.sleep(seconds)
            taken = time.monotonic() - begun
            share = (usage(visitor.process.pid).cpu - before) / taken
            if changing is not None:
                changing.cancel()
            text = f"{share:8.1%} of a core, {(pages.looks - looks) / taken:.0f} looks a second"
            row(title, text, "20 %")


@contextmanager
def page_of(node: Node) -> Iterator[Visitor]:
    """Yield a visitor of a running dashboard."""
    process = node.start("web", "--listen", "127.0.0.1:0")
    try:
        yield Visitor(process)
    finally:
        process.terminate()
        process.communicate(timeout=60)


async def measure(asked: argparse.Namespace, directory: Path) -> None:
    """Measure, and print a table."""
    loop = asyncio.get_running_loop()
    with store("nats-new", directory) as place:
        async with fleet(place, asked.nodes) as told:
            node = root_of(directory / "root", place.settings, told)
            count, taken = await asyncio.to_thread(remember, node.state, told, asked.days)
            row("written", f"{count} ends in {taken:.0f} s")
            await told.all()
            with page_of(node) as visitor:
                has = f"<h1>{asked.nodes} nodes"
                row("found", f"{visitor.until('/', lambda text: has in text):7.1f} s")
                listed = "role%3Dweb"
                visitor.until(f"/nodes?q={listed}", lambda text: f"of {asked.nodes // 5}<" in text)
                await asyncio.to_thread(answers, visitor, told.nodes, asked.rounds)
                loads = partial(visitor.until, "/bus", lambda text: "still loading" not in text)
                row("history", f"{await asyncio.to_thread(loads):7.1f} s")
                await asyncio.to_thread(paints, visitor, loop, told)
                await listeners(visitor, told, asked.pages, asked.seconds)
                resident = usage(visitor.process.pid).memory
                row("memory", f"{resident:7.0f} MiB", "150 MiB")
            files = (node.state / "web").iterdir()
            disk = sum(file.stat().st_size for file in files) / 2**20
            row("disk", f"{disk:7.0f} MiB", "2 GiB")
    row("load", " ".join(f"{load:.1f}" for load in os.getloadavg()))


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--days", type=float, default=90.0)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--pages", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=20.0)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(measure(asked, Path(directory)))


if __name__ == "__main__":
    main()
