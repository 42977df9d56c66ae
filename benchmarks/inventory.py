"""The cost of the inventory: a view of all entries of a fleet, a change, and a run's publication.

    listing   a bare client of the same server reads all entries (nats-py's pull consumer, or etcd
              in pages), and a view is made of them: list, verify, unpack, write; each in a
              separate process, alternating. Again with a view that has the entries already.
    change    from the write of a node until the view of another node has it, p50 and p95
    role      the nodes of one role from the view, by its index
    publish   the cost at the end of a run: read, select, pack and write facts

Entries are of real Facter output, varied, with interfaces and mounts added until each node has
--facts bytes as JSON. The output compares results with bars. Needs Puppet's facter, and
nats-server or etcd.

    benchmarks/inventory.py [--nodes N] [--engine nats-new|nats|etcd] [--rounds R]
"""

import argparse
import asyncio
import json
import multiprocessing
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parent.parent))  # for the servers of the tests

from engines import Store, store

from localpuppet.base.formats.names import EnvironmentName, NodeName, RunId, SignerName
from localpuppet.base.machine.process_table import SystemClock
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.bus.layout import INVENTORY
from localpuppet.fleet.inventory.admission import EntryAdmission
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.facts import FactSelection, PublishedRun, class_names, entry_of
from localpuppet.fleet.inventory.following import ViewFollower
from localpuppet.fleet.inventory.outbox import Outbox
from localpuppet.fleet.inventory.query.functions import FunctionCall
from localpuppet.fleet.inventory.view import View
from localpuppet.fleet.trust.key_files import TrustedKeys, public_pem
from localpuppet.fleet.trust.signing import MessageKind, MessageSigner, Verifier
from tests.doubles.inventory import NoCompanion
from tests.doubles.ports import FakeLog
from tests.rigs.reaching import servers_at

TIMEOUT = 60.0
AT_ONCE = 64
PAGE = 500
CHANGES = 50
ROLES = ("web", "db", "cache", "lb", "mail")


@dataclass(frozen=True)
class Made:
    """A fleet with published entries.

    Attributes:
        url: The server.
        engine: Its kind.
        directory: The directory with the pinned keys.
        nodes: The number of nodes.
    """

    url: str
    engine: str
    directory: Path
    nodes: int


def name_of(number: int) -> NodeName:
    """Return the name of a node."""
    return NodeName(f"n{number:05}.example.com")


def facts_of(number: int, real: dict[str, Any], least: int) -> dict[str, Any]:
    """Return the facts of a node, which differ from those of other nodes."""
    chance = random.Random(number)  # noqa: S311 - the same fleet each time
    facts: dict[str, Any] = json.loads(json.dumps(real))
    interfaces = facts.setdefault("networking", {}).setdefault("interfaces", {})
    while len(json.dumps(facts)) < least:
        index = len(interfaces)
        address = f"10.{chance.randrange(256)}.{chance.randrange(256)}.{chance.randrange(256)}"
        mac = ":".join(f"{chance.randrange(256):02x}" for _ in range(6))
        binding = {"address": address, "netmask": "255.255.255.0", "network": "10.0.0.0"}
        interfaces[f"eth{index}"] = {"ip": address, "mac": mac, "bindings": [binding]}
        facts.setdefault("mountpoints", {})[f"/srv/{chance.randrange(10**9)}"] = {
            "device": f"/dev/vd{index}",
            "filesystem": "ext4",
            "size_bytes": chance.randrange(10**12),
        }
    return facts


def run_of(number: int, real: dict[str, Any], least: int, *, roles: list[Any]) -> PublishedRun:
    """Return a good run of a node."""
    entry = InventoryEntry(
        node=name_of(number),
        at=time.time(),
        run=RunId("20260101T000000.000000Z-00aa"),
        release="app/tags/r1",
        environment=EnvironmentName("production"),
        facts=facts_of(number, real, least),
        roles=(),
        classes=class_names(["main", "app", "nginx::vhost"]),
        paths=((),),
    )
    return PublishedRun(entry=entry, parameters={"role": roles}, withheld=())


async def connected(made: Made) -> KeyValue:
    """Return a client of localpuppet."""
    if made.engine == "etcd":
        from localpuppet.fleet.bus.etcd_bus import open_etcd

        return await open_etcd(servers_at(made.url), timeout=TIMEOUT)
    from localpuppet.fleet.bus.nats_bus import open_nats

    return await open_nats(servers_at(made.url), timeout=TIMEOUT)


def follower(made: Made, view: View, kv: KeyValue) -> ViewFollower:
    """Return the follower that makes a view of the bus."""

    async def store_of() -> KeyValue:
        return kv

    async def nobody(_: KeyValue) -> dict[str, dict[str, object]]:
        return {}

    admission = EntryAdmission(
        Verifier(TrustedKeys(made.directory / "trusted"), None, SystemClock()),
        claims=made.directory / "none",
        policy=made.directory / "none",
        now=time.time,
    )
    return ViewFollower(
        view,
        store=store_of,
        admission=admission,
        trust=lambda: "1",
        probe=f"{INVENTORY}x",
        companion=NoCompanion(),
        online=nobody,
        clock=SystemClock(),
        log=FakeLog(),
    )


async def fill(made: Made, real: dict[str, Any], least: int) -> list[MessageSigner]:
    """Write the entries of all nodes; return their signers."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    kv = await connected(made)
    trusted = made.directory / "trusted"
    trusted.mkdir(mode=0o755)
    signers = []
    for start in range(0, made.nodes, AT_ONCE):
        writes = []
        for number in range(start, min(start + AT_ONCE, made.nodes)):
            key = Ed25519PrivateKey.generate()
            signer = MessageSigner(SignerName(name_of(number)), key)
            signers.append(signer)
            (trusted / f"{signer.name}.pem").write_bytes(public_pem(key.public_key()))
            roles = ["rare"] if number % (made.nodes // 20 or 1) == 0 else [ROLES[number % 5]]
            entry = entry_of(run_of(number, real, least, roles=roles), FactSelection())
            token = signer.sign(entry.to_payload(), MessageKind.INVENTORY)
            writes.append(kv.put(f"{INVENTORY}{entry.node}", token))
        await asyncio.gather(*writes)
    await kv.close()
    return signers


async def bare(made: Made) -> int:
    """Read all entries with the server's own client library; return their bytes."""
    if made.engine == "etcd":
        return await bare_etcd(made)
    from nats.aio.client import Client
    from nats.errors import TimeoutError as Late

    client = Client()
    await client.connect(made.url)
    stream = client.jetstream()
    pull = await stream.pull_subscribe(
        "lp-inventory.>", stream="localpuppet-inventory", config=_last_of_each()
    )
    size = count = 0
    while count < made.nodes:
        try:
            for message in await pull.fetch(PAGE, timeout=5):
                size += len(message.data)
                count += 1
        except Late:
            break
    await client.close()
    assert count == made.nodes, count
    return size


def _last_of_each() -> Any:  # noqa: ANN401 - nats-py's
    from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

    return ConsumerConfig(
        deliver_policy=DeliverPolicy.LAST_PER_SUBJECT, ack_policy=AckPolicy.NONE, mem_storage=True
    )


async def bare_etcd(made: Made) -> int:
    """Read all entries from etcd, in pages."""
    from grpclib.client import Channel
    from grpclib.const import Cardinality

    from localpuppet.fleet.bus import etcd_messages
    from localpuppet.fleet.bus.etcd_calls import _Codec

    parts = urlsplit(made.url)
    channel = Channel(parts.hostname, parts.port, codec=_Codec())
    size = 0
    for number in range(0, made.nodes, PAGE):
        request = etcd_messages.range_request(
            f"{INVENTORY}{name_of(number)}", end=f"{INVENTORY}{name_of(number + PAGE)}"
        )
        async with channel.request(
            etcd_messages.RANGE, Cardinality.UNARY_UNARY, bytes, bytes
        ) as stream:
            await stream.send_message(request, end=True)
            size += len(await stream.recv_message() or b"")
    channel.close()
    return size


async def make_view(made: Made, path: Path) -> int:
    """Make a view of all entries; return how many are in it."""
    kv = await connected(made)
    view = View(path, now=time.time)
    await follower(made, view, kv).list_once()
    await kv.close()
    return len(view.unknown({name_of(number): b"" for number in range(made.nodes)}))


def _measured(what: str, made: Made, path: Path, answer: Any) -> None:  # noqa: ANN401 - a queue
    work: dict[str, Callable[[], Any]] = {
        "bare": lambda: bare(made),
        "view": lambda: make_view(made, path),
    }
    began, cpu = time.monotonic(), time.process_time()
    asyncio.run(work[what]())
    taken = time.monotonic() - began
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    answer.put((taken, time.process_time() - cpu, memory))


def apart(what: str, made: Made, path: Path) -> tuple[float, float, float]:
    """Return seconds, CPU seconds and MiB of some work in a separate process."""
    context = multiprocessing.get_context("spawn")
    answer = context.Queue()
    process = context.Process(target=_measured, args=(what, made, path, answer))
    process.start()
    found: tuple[float, float, float] = answer.get()
    process.join()
    return found


def listing(made: Made, rounds: int) -> None:
    """Print the cost of a view of all entries."""
    found: dict[str, list[tuple[float, float, float]]] = {"bare": [], "view": [], "again": []}
    for number in range(rounds):
        path = made.directory / f"view{number}.sqlite"
        found["bare"].append(apart("bare", made, path))
        found["view"].append(apart("view", made, path))
        found["again"].append(apart("view", made, path))
    for what, values in found.items():
        seconds, cpu, memory = (statistics.median(column) for column in zip(*values, strict=True))
        print(f"listing {what:6} {seconds:7.2f} s  {cpu:7.2f} s CPU  {memory:6.0f} MiB")
    medians = {key: statistics.median(one[0] for one in value) for key, value in found.items()}
    bar("a full view, of the bare listing", medians["view"] / medians["bare"], 1.5, "")
    bar("a view that is known, of the bare listing", medians["again"] / medians["bare"], 1.5, "")
    bar("memory", max(one[2] for one in found["view"]), 96, " MiB")


async def change(made: Made, first: MessageSigner, real: dict[str, Any], least: int) -> None:
    """Print the delay of a change, and the cost of a query."""
    kv, other = await connected(made), await connected(made)
    view = View(made.directory / "view0.sqlite", now=time.time)
    leave = asyncio.Event()
    following = asyncio.create_task(follower(made, view, kv).follow(leave))
    while (current := view.current_until()) is None or time.time() - current > 10:
        await asyncio.sleep(0.05)
    taken = []
    for number in range(CHANGES):
        entry = entry_of(run_of(0, real, least, roles=[f"r{number}"]), FactSelection())
        token = first.sign(entry.to_payload(), MessageKind.INVENTORY)
        began = time.monotonic()
        await other.put(f"{INVENTORY}{entry.node}", token)
        while (found := view.entry(entry.node)) is None or found.digest != entry.digest:
            await asyncio.sleep(0.001)
        taken.append(time.monotonic() - began)
    asked = []
    for _ in range(CHANGES):
        began = time.monotonic()
        count = len(FunctionCall.of("query_nodes", ["role=rare"]).answer(view).names)
        asked.append(time.monotonic() - began)
    leave.set()
    await following
    await kv.close()
    await other.close()
    late = statistics.quantiles(taken, n=20)[-1]
    bar("one change, p50", 1000 * statistics.median(taken), 50, " ms")
    print(f"         one change, p95 {1000 * late:.1f} ms")
    bar(f"{count} of {made.nodes} nodes by role, p50", 1000 * statistics.median(asked), 5, " ms")


def publish(made: Made, real: dict[str, Any], least: int) -> None:
    """Print the cost for a run."""
    file = made.directory / "facts.json"
    file.write_text(json.dumps(facts_of(0, real, least)))
    outbox = Outbox(made.directory / "state")
    news: list[float] = []
    same: list[float] = []
    for number in range(CHANGES):
        for values in (news, same):
            run = run_of(0, {}, 0, roles=[f"r{number}"])
            began = time.monotonic()
            facts = json.loads(file.read_text())
            whole = replace(run, entry=replace(run.entry, facts=facts))
            entry = entry_of(whole, FactSelection())
            outbox.offer(entry, refresh=3600)
            values.append(time.monotonic() - began)
    bar("publishing, a run with news, p50", 1000 * statistics.median(news), 30, " ms")
    bar("publishing, a run without, p50", 1000 * statistics.median(same), 30, " ms")


def bar(what: str, found: float, most: float, unit: str) -> None:
    """Print whether a bar was reached."""
    word = "reached" if found <= most else "MISSED"
    print(f"{word}: {what} {found:.3g}{unit} (bar {most:g}{unit})")


def measure(at: Store, asked: argparse.Namespace, directory: Path) -> None:
    """Print all of it."""
    # Facter exits with 1 if it cannot read a fact, and prints the others.
    told = subprocess.run(["facter", "--json"], capture_output=True, check=False)  # noqa: S607
    real = json.loads(told.stdout)
    made = Made(url=at.url, engine=at.engine, directory=directory, nodes=asked.nodes)
    first = asyncio.run(fill(made, real, asked.facts))[0]
    print(f"{asked.nodes} nodes of {asked.facts} bytes of facts on {asked.engine}")
    listing(made, asked.rounds)
    asyncio.run(change(made, first, real, asked.facts))
    publish(made, real, asked.facts)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=10_000, help="[10000]")
    parser.add_argument("--facts", type=int, default=14_000, help="bytes of JSON a node [14000]")
    parser.add_argument("--engine", choices=("nats", "nats-new", "etcd"), default="nats-new")
    parser.add_argument("--rounds", type=int, default=3, help="of the listing [3]")
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp"), help="[/var/tmp]")  # noqa: S108
    asked = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir=asked.directory) as name,
        store(asked.engine, asked.directory) as at,
    ):
        measure(at, asked, Path(name))


if __name__ == "__main__":
    main()
