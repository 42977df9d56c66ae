"""What the PuppetDB API costs with a large fleet, beside a real PuppetDB that has the same nodes.

    overview   each request of Puppetboard's overview and of its chart, and other requests, sent to
               both servers in turn; milliseconds until the answer is complete, medians
    visible    from a node's write to the bus until its report is in an answer
    clients    50 clients that send one request after another for a minute
    kill -9    from the restart until the first answer, and until an answer is complete
    hostile    requests that are made to be expensive
    memory     of localpuppet's process, the most it had; of PuppetDB and PostgreSQL, now

Facts are real Facter output, varied, as in `inventory.py`; runs are those of `puppetdb_runs.py`.
Bars are printed with the figures. Needs root, NATS, and what `scripts/puppetdb` unpacks.

    benchmarks/puppetdb_api.py [--nodes N] [--days D] [--every S] [--alone]
"""

import argparse
import asyncio
import http.client
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # for the rigs of the tests

from asking import family, loaded, memory, pss
from engines import store
from inventory import AT_ONCE, Made, bar, connected, fill, name_of, run_of
from puppetdb import Client
from puppetdb_bulk import DAY, History, load_runs
from puppetdb_fleet import publish_runs
from puppetdb_load import HOSTILE, clients
from puppetdb_queries import catalog_of
from puppetdb_requests import Request, chart, get, order, overview
from puppetdb_runs import changed, failed, foreseen, stamp, unchanged
from puppetdb_server import PuppetDb, free_port, running, wire_of

from localpuppet.fleet.history.history_records import RunSummary
from localpuppet.fleet.inventory.facts import FactSelection, entry_of
from localpuppet.fleet.trust.signing import MessageSigner
from localpuppet.web.dashboard.memory import FILE, DashboardStore
from localpuppet.web.dashboard.run_table import RunRow
from tests.fleet.make import a_summary, run_id
from tests.rigs.node import Node

# Nodes that PuppetDB gets by its own commands: the kinds of runs repeat after that number.
MODELS = 40
TOGETHER = 10_000
ROUNDS = 15
PATIENCE = 900.0
KINDS = (failed, changed, foreseen, unchanged)


def kind(at: float, number: int) -> RunSummary:
    """Return a run: one of twenty failed, one changed something, and one would do so."""
    return KINDS[min(number, len(KINDS) - 1)](replace(a_summary(at), noop=False))


def remember(state: Path, history: History) -> None:
    """Write all runs but each node's last one as the dashboard does."""
    models = [RunRow.of_summary("", kind(0.0, number)) for number in range(20)]
    store_ = DashboardStore(state / FILE, now=time.time)
    for step in range(history.steps - 1, 0, -1):
        batch = []
        for number in range(history.nodes):
            at = history.ended(number, step)
            model = models[(step + number) % len(models)]
            batch.append(replace(model, node=name_of(number), run=run_id(at), finished_at=at))
        store_.write_history(batch, ())
    store_.close()


async def publish(made: Made, signers: Sequence[MessageSigner], history: History) -> None:
    """Publish each node's last run."""
    kv = await connected(made)
    for start in range(0, made.nodes, AT_ONCE):
        numbers = range(start, min(start + AT_ONCE, made.nodes))
        runs = ([kind(history.ended(number, 0), number % 20)] for number in numbers)
        await asyncio.gather(*map(publish_runs, [kv] * AT_ONCE, signers[start:], runs))
    await kv.close()


class Api:
    """A `localpuppet web --puppetdb`, which can be killed and started again.

    Args:
        node: Its root.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self.port = free_port()
        self.start()

    def start(self) -> None:
        """Start it."""
        listen = ("--listen", "127.0.0.1:0", "--puppetdb", f"127.0.0.1:{self.port}")
        self.process = self._node.start("web", *listen)

    def end(self, number: signal.Signals) -> None:
        """End it with a signal."""
        self.process.send_signal(number)
        self.process.communicate(timeout=PATIENCE)

    def until(self, request: Request, wanted: Callable[[Any], bool]) -> float:
        """Return after how many seconds an answer is as wanted."""
        begun, client = time.monotonic(), Client(self.port)
        while time.monotonic() < begun + PATIENCE:
            try:
                answer = client.send(request)
            except (OSError, http.client.HTTPException):
                answer, client = None, Client(self.port)
            if answer is not None and answer.status == 200 and wanted(answer.body):
                return time.monotonic() - begun
            time.sleep(0.02)
        raise SystemExit(f"{request}: no such answer in {PATIENCE:.0f} s")


def measured(history: History) -> dict[str, Request]:
    """Return the requests whose time is compared, by title."""
    day = history.days[-2]
    node = name_of(history.nodes // 2)
    titles = ("environments", "count of nodes", "count of resources", "nodes", "event counts")
    return {
        **{f"overview: {title}": one for title, one in zip(titles, overview(), strict=True)},
        "overview: runs of a day": chart(stamp(day), stamp(day + DAY)),
        "100 nodes": get(
            "/nodes", order_by=order("certname"), limit=100, offset=history.nodes // 2
        ),
        "names of a role": get("", 'inventory[certname] { facts.role = "rare" }'),
        "a node": get(f"/nodes/{node}"),
        "facts of a node": get(f"/nodes/{node}/facts"),
        "reports of a node": get(
            "/reports",
            ["=", "certname", node],
            limit=10,
            order_by=order("-start_time"),
            include_total=True,
        ),
        "newest reports": get(
            "/reports", limit=10, order_by=order("-end_time"), include_total=True
        ),
        "values of a fact": get("/facts/kernel"),
        "failed nodes": get("", "nodes[certname] { latest_report_status = 'failed' }"),
    }


def compare(servers: Sequence["Timed"], history: History) -> None:
    """Send the requests to the servers in turn; print medians on the clock and of processors."""
    for title, request in measured(history).items():
        answers: list[list[Took]] = [[] for _ in servers]
        for _ in range(ROUNDS):
            for server, some in zip(servers, answers, strict=True):
                some.append(server.send(request))
        own, *peer = (1000 * statistics.median(one.wall for one in some) for some in answers)
        limit = 100 if title == "100 nodes" else 20 if "role" in title else 300
        bar(title, own, limit, " ms")
        if peer and peer[0] > 50:
            bar(f"{title}: of PuppetDB's time", own / peer[0], 0.2, "")
        for server, some in zip(servers, answers, strict=True):
            wall = 1000 * statistics.median(one.wall for one in some)
            cpu = 1000 * statistics.median(one.cpu for one in some)
            kinds = sorted({one.answer for one in some})
            print(f"  {server.title}: {wall:.1f} ms, CPU {cpu:.1f} ms, {kinds}", flush=True)


@dataclass(frozen=True)
class Took:
    """What an answer took: seconds on the clock and of processors; its status and size."""

    wall: float
    cpu: float
    answer: tuple[int, int]


class Timed:
    """A client that measures, and does not read the JSON.

    Args:
        title: The server's name.
        port: Its port.
        pids: Its processes.
    """

    def __init__(self, title: str, port: int, pids: Callable[[], list[int]]) -> None:
        self.title = title
        self._pids = pids
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)

    def send(self, request: Request) -> Took:
        """Send a request and read the answer."""
        before, begun = self._cpu(), time.perf_counter()
        self._connection.request("GET", request.target)
        response = self._connection.getresponse()
        text = response.read()
        wall = time.perf_counter() - begun
        return Took(wall, self._cpu() - before, (response.status, len(text)))

    def _cpu(self) -> float:
        threads = (
            thread
            for pid in self._pids()
            for thread in Path(f"/proc/{pid}/task").glob("*/schedstat")
        )
        return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def ends_at(wanted: str, rows: list[dict[str, Any]]) -> bool:
    """Whether the first report ended at a time."""
    return bool(rows and rows[0]["end_time"] == wanted)


def visible(api: Api, made: Made, signers: Sequence[MessageSigner]) -> None:
    """Print how long it takes until a report of a new run is in an answer."""

    async def end_run(at: float) -> None:
        kv = await connected(made)
        await publish_runs(kv, signers[0], [kind(at, 1)])
        await kv.close()

    delays = []
    for _ in range(5):
        at = float(int(time.time() * 1000)) / 1000
        asyncio.run(end_run(at))
        # Without logs, which are asked of the node.
        node = ["extract", ["end_time"], ["=", "certname", str(name_of(0))]]
        newest = get("/reports", node, limit=1, order_by=order("-end_time"))
        wanted = stamp(at)
        api.until(newest, partial(ends_at, wanted))
        delays.append(time.time() - at)
    bar("report visible after a run, median", statistics.median(delays), 1, " s")


def crash(api: Api, history: History) -> None:
    """Kill the process, start it again, and print when it answers."""
    total = get("", "reports[count()] { }")
    before = Client(api.port).send(total).body
    api.end(signal.SIGKILL)
    begun = time.monotonic()
    api.start()
    first = api.until(get("", "nodes[count()] { }"), lambda rows: rows[0]["count"] > 0)
    bar("first answer after kill -9", first, 2, " s")
    api.until(
        get("", "nodes[count()] { report_timestamp is not null }"),
        lambda rows: rows == [{"count": history.nodes}],
    )
    api.until(total, lambda rows: bool(rows == before))
    bar("complete after kill -9", time.monotonic() - begun, 6, " s")


def hostile(api: Api) -> None:
    """Print what hostile requests cost."""
    for title, request in HOSTILE.items():
        begun = time.monotonic()
        answer = Client(api.port).send(request)
        taken = time.monotonic() - begun
        text = answer.body if isinstance(answer.body, str) else f"{answer} rows"
        print(f"hostile: {title:24} {answer.status} in {taken:.2f} s: {text[:100]}")


def crowd(api: Api, history: History, seconds: float) -> None:
    """Print what many clients at once get."""
    wanted = measured(history)
    some = [
        wanted[title]
        for title in (
            "100 nodes",
            "names of a role",
            "a node",
            "facts of a node",
            "reports of a node",
            "failed nodes",
        )
    ]
    times = asyncio.run(clients(api.port, some, 50, seconds))
    ordered = sorted(times.seconds)
    median, late = ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]
    print(f"50 clients: {len(ordered) / seconds:.0f} answers a second, median {median:.3f} s")
    bar("50 clients: errors", len(times.errors), 0, "")
    bar("50 clients: 99 % of answers", late, min(1, 5 * median), " s")
    for error in times.errors[:3]:
        print(f"  {error}")


def processes(server: PuppetDb) -> list[int]:
    """Return the processes of PuppetDB and of PostgreSQL."""
    return [*family(server.pid), *family(server.database_pid)]


def load(server: PuppetDb, made: Made, history: History, real: dict[str, Any], least: int) -> None:
    """Give PuppetDB the same fleet."""
    loaded(server, made, real, least)
    for number in range(min(MODELS, made.nodes)):
        entry = entry_of(run_of(number, {}, 0, roles=[]), FactSelection())
        server.replace_catalog(wire_of(catalog_of(entry)))
    kinds = [kind(history.now - number, number) for number in range(len(KINDS))]
    load_runs(server, history, kinds)


def measure(asked: argparse.Namespace, directory: Path) -> None:
    """Measure, and print a table."""
    told = subprocess.run(["facter", "--json"], capture_output=True, check=False)  # noqa: S607
    real = json.loads(told.stdout)
    history = History(
        nodes=asked.nodes,
        models=min(MODELS, asked.nodes),
        now=float(int(time.time())),
        every=asked.every,
        steps=int(asked.days * DAY / asked.every),
    )
    with ExitStack() as stack:
        at = stack.enter_context(store("nats-new", directory))
        made = Made(url=at.url, engine=at.engine, directory=directory, nodes=asked.nodes)
        signers = asyncio.run(fill(made, real, asked.facts))
        asyncio.run(publish(made, signers, history))
        node = Node(directory / "root")
        node.root.mkdir(mode=0o755)
        node.settings(node="web.example.com", **at.settings)
        (directory / "trusted").rename(node.root / "trusted")
        remember(node.state, history)
        print(f"{asked.nodes} nodes, {history.steps} runs of each", flush=True)
        api = Api(node)
        stack.callback(api.end, signal.SIGTERM)
        everything = get("", "nodes[count()] { report_timestamp is not null }")
        taken = api.until(everything, lambda rows: rows == [{"count": asked.nodes}])
        print(f"a view from nothing in {taken:.1f} s", flush=True)
        runs = [{"count": asked.nodes * history.steps}]
        api.until(get("", "reports[count()] { }"), lambda rows: bool(rows == runs))
        servers = [Timed("localpuppet", api.port, lambda: [api.process.pid])]
        if not asked.alone:
            server = stack.enter_context(running())
            begun = time.monotonic()
            load(server, made, history, real, asked.facts)
            print(f"PuppetDB loaded in {time.monotonic() - begun:.0f} s", flush=True)
            servers.append(Timed("PuppetDB", server.port, partial(processes, server)))
        compare(servers, history)
        if not asked.alone:
            for what, pid in (
                ("PuppetDB (-Xmx512m)", server.pid),
                ("PostgreSQL", server.database_pid),
            ):
                print(f"memory, {what}: {sum(map(pss, family(pid))):.0f} MiB")
        visible(api, made, signers)
        crowd(api, history, asked.seconds)
        bar("memory of the process, most", memory(api.process.pid, "VmHWM"), 200, " MiB")
        crash(api, history)
        hostile(api)
        bar("memory after hostile requests, most", memory(api.process.pid, "VmHWM"), 200, " MiB")


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=10_000, help="[10000]")
    parser.add_argument("--facts", type=int, default=14_000, help="bytes of JSON a node [14000]")
    parser.add_argument("--days", type=float, default=8.0, help="days with runs [8]")
    parser.add_argument(
        "--every", type=float, default=14_400.0, help="seconds between runs [14400]"
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="of 50 clients [60]")
    parser.add_argument("--alone", action="store_true", help="without PuppetDB")
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="[/var/tmp]")  # noqa: S108
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.directory) as name:
        measure(asked, Path(name))


if __name__ == "__main__":
    main()
