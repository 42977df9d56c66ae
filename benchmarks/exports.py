"""Exports: the cost of a collector among many nodes, and of publishing many resources.

    python -m benchmarks.exports [--nodes 10000]

These figures have no peer, because they are parts of a run. They have separate bars.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.values import Json
from localpuppet.fleet.bus.sqlite_bus import open_sqlite
from localpuppet.fleet.exports.collectors import Search
from localpuppet.fleet.exports.held import MAX_TOGETHER, HeldExports, NodeExports, exports_writer
from localpuppet.fleet.exports.recording import CollectorService
from localpuppet.fleet.exports.resource import ExportedResource, pack, read, unpack
from localpuppet.fleet.inventory.chunks import ChunkOutbox
from localpuppet.fleet.inventory.entry import ExportsSummary
from tests.fleet.inventory.entries import entry

EACH = 10
MATCHING = 100
MANY = 5000
ROUNDS = 20


def resource(node: int, number: int, *tags: str) -> ExportedResource:
    """Return a member of a load balancer, as haproxy's module has it."""
    return ExportedResource(
        type="Haproxy::Balancermember",
        title=f"n{node:05}-{number}",
        tags=tuple(sorted(("app", "class", "haproxy", "node", f"dc{node % 10}", *tags))),
        file="/etc/puppet/modules/site/tags/r1/site/manifests/web.pp",
        line=12,
        parameters={
            "listening_service": "shop",
            "ports": [8080, 8443],
            "server_names": f"n{node:05}.example.com",
            "ipaddresses": f"10.{node // 250}.{node % 250}.{number}",
            "options": ["check", "inter 2s"],
        },
    )


class Watch:
    """Measures wall and CPU seconds of repeated work."""

    def __init__(self) -> None:
        self._took: list[tuple[float, float]] = []

    @contextmanager
    def once(self) -> Iterator[None]:
        """Take the time of the block."""
        begun = time.perf_counter(), time.process_time()
        yield
        self._took.append((time.perf_counter() - begun[0], time.process_time() - begun[1]))

    def show(self, what: str, bar: str = "") -> None:
        """Print the medians."""
        wall, cpu = (statistics.median(one) * 1000 for one in zip(*self._took, strict=True))
        print(f"{what:<55} {wall:8.1f} ms  CPU {cpu:8.1f} ms   {bar}")


def said_by(node: int, nodes: int) -> NodeExports:
    """Return the exports of a node; one in several nodes has a matching resource."""
    tags = ("wanted",) if node % (nodes // MATCHING) == 0 else ()
    own = [resource(node, n, *(tags if n == 0 else ())) for n in range(EACH)]
    return NodeExports.of(f"n{node:05}.example.com", "1", own)


def collecting(directory: Path, nodes: int) -> None:
    """Collect a hundred resources from the exports of all nodes."""
    held = HeldExports(directory / "held.sqlite")
    watch = Watch()
    with watch.once():
        for first in range(0, nodes, MAX_TOGETHER):
            held.hold_all(
                [said_by(node, nodes) for node in range(first, min(first + MAX_TOGETHER, nodes))]
            )
    watch.show(f"hold what {nodes} nodes export")
    policy = directory / "collect.policy"
    policy.write_text("*\tHaproxy::Balancermember\t*\n")
    policy.chmod(0o644)
    answering = CollectorService(held, me="me.example.com", policy=policy)
    asked: list[tuple[Json, int]] = [(["tag", "==", "wanted"], MATCHING), (None, nodes * EACH)]
    for condition, count in asked:
        watch = Watch()
        for _ in range(ROUNDS if count == MATCHING else 1):
            with watch.once():
                found = answering.collect("Haproxy::Balancermember", Search.parse(condition))
            assert len(found.taken) == count
        bar = "bar: 20 ms" if count == MATCHING else ""
        watch.show(f"collect {count} of {nodes * EACH} resources", bar)
    held.close()


async def publishing(directory: Path) -> None:
    """Publish five thousand resources of one node, on SQLite."""
    resources = [resource(n, 0) for n in range(MANY)]
    name = NodeName("n00000.example.com")
    watch = Watch()
    kv = await open_sqlite(directory / "bus.sqlite", timeout=5)
    for round_ in range(5):
        changed = [resource(round_, 1), *resources]
        with watch.once():
            packed = pack(changed)
            outbox = ChunkOutbox(directory / "state" / "exports")
            outbox.write(packed.data)
            summary = ExportsSummary(
                count=packed.count, digest=packed.digest, size=len(packed.data)
            )
            said = entry(name, at=time.time(), exports=summary)
            baggage = exports_writer(name, outbox)
            await baggage.bring(kv, said, None)
            baggage.landed(said)
    watch.show(f"publish {MANY} resources ({len(packed.data) // 1024} KiB packed)", "bar: 300 ms")
    await kv.close()
    data = json.dumps({"schema": 1, "resources": [one.to_dict() for one in resources]}).encode()
    watch = Watch()
    with watch.once():
        read(data)
    watch.show(f"read what a catalog of {MANY} exports left")
    watch = Watch()
    with watch.once():
        unpack(packed.data)
    watch.show(f"unpack {MANY} of another node")


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=10_000, help="How many nodes export.")
    nodes = parser.parse_args().nodes
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(publishing(Path(directory)))
        collecting(Path(directory), nodes)


if __name__ == "__main__":
    main()
