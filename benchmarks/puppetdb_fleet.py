"""localpuppet's side of `puppetdb.py`: nodes on a SQLite bus, and `localpuppet web --puppetdb`."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from puppetdb_queries import catalog_of, exports_of
from puppetdb_server import free_port

from localpuppet.base.formats.converter import to_record
from localpuppet.base.formats.names import NodeName, SignerName
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.fleet.bus.sqlite_bus import open_sqlite
from localpuppet.fleet.exports.held import exports_writer
from localpuppet.fleet.exports.resource import pack
from localpuppet.fleet.history.history_records import (
    RUNS,
    HistoryDay,
    RunSummary,
    day_of,
    history_key,
)
from localpuppet.fleet.inventory.chunks import ChunkOutbox
from localpuppet.fleet.inventory.entry import CatalogSummary, ExportsSummary, InventoryEntry
from localpuppet.fleet.inventory.entry_publisher import PublisherIdentity, publish
from localpuppet.fleet.inventory.presence import announce
from localpuppet.fleet.kept_catalogs import CatalogKeeper, pack_catalog
from localpuppet.fleet.trust.key_files import TrustedKeys
from localpuppet.fleet.trust.signing import MessageKind, MessageSigner
from tests.doubles.identities import Person, person, verifier
from tests.rigs.node import Node
from tests.rigs.waiting import PATIENCE
from tests.web.make import status

TTL = 6 * 3600.0


@dataclass(frozen=True, kw_only=True)
class FleetNode:
    """A node of both servers.

    Attributes:
        entry: Its inventory entry.
        runs: Its runs, the oldest first.
    """

    entry: InventoryEntry
    runs: tuple[RunSummary, ...]


async def publish_all(node: Node, bus: Path, members: Sequence[FleetNode]) -> None:
    """Publish nodes as their agents do, and pin their keys in the root of another node."""
    trusted = TrustedKeys(node.root / "trusted")
    store = await open_sqlite(bus, timeout=PATIENCE)
    try:
        for member in members:
            signer = person(str(member.entry.node))
            trusted.pin(SignerName(signer.name), signer.key.public_key())
            await _publish(store, signer, member, node.root / "peers" / signer.name)
    finally:
        await store.close()


async def _publish(store: KeyValue, signer: Person, member: FleetNode, directory: Path) -> None:
    name = member.entry.node
    directory.mkdir(parents=True)
    packed, outbox = pack(exports_of(member.entry)), ChunkOutbox(directory)
    if packed.count:
        outbox.write(packed.data)
    exports = ExportsSummary(count=packed.count, digest=packed.digest, size=len(packed.data))
    canonical = catalog_of(member.entry)
    catalog = pack_catalog(canonical)
    keeper = CatalogKeeper(directory)
    entry = replace(
        member.entry,
        exports=exports if packed.count else member.entry.exports,
        catalog=CatalogSummary(
            digest=keeper.outbox.write(catalog),
            size=len(catalog),
            resources=len(canonical.resources),
        ),
    )
    identity = PublisherIdentity(
        node=name,
        signer=signer.signer,
        verifier=verifier(directory, signer),
        baggage=(exports_writer(name, outbox), keeper.writer(name)),
    )
    await publish(store, entry.digested().to_payload(), identity)
    await publish_runs(store, signer.signer, member.runs)


async def publish_runs(store: KeyValue, signer: MessageSigner, runs: Sequence[RunSummary]) -> None:
    """Publish the runs of a node, the oldest first, and the last one in its presence."""
    name = NodeName(signer.name)
    for day, some in groupby(runs, lambda run: day_of(run.finished_at)):
        history = HistoryDay(node=name, day=day, records=tuple(some), dropped=0)
        token = signer.sign(history.to_payload(), RUNS.message)
        await store.put(history_key(name, RUNS.kind, day), token)
    last = runs[-1]
    presence = status(
        name,
        last.finished_at,
        run_interval=None,
        last_run=to_record(last.end),
    )
    token = signer.sign(json.dumps(presence).encode(), MessageKind.PRESENCE)
    await announce(store, name, token, ttl=TTL)


@contextmanager
def serving(directory: Path, members: Sequence[FleetNode]) -> Iterator[int]:
    """Publish nodes, and lend the port of a `localpuppet web --puppetdb` that reads them."""
    bus, port = directory / "bus" / "bus.sqlite", free_port()
    bus.parent.mkdir()
    node = Node(directory / "root")
    node.root.mkdir(mode=0o755)
    node.settings(node="web.example.com", bus="sqlite", buses={"sqlite": {"path": str(bus)}})
    asyncio.run(publish_all(node, bus, members))
    listen = ("--listen", "127.0.0.1:0", "--puppetdb", f"127.0.0.1:{port}")
    process = node.start("web", *listen)
    try:
        yield port
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)
