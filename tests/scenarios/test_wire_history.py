"""The history of nodes on servers with the documented permissions, for each user of the bus."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

import pytest

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.bus.key_value import KeyValue, RefusedError
from localpuppet.fleet.bus.layout import HISTORY, INVENTORY
from localpuppet.fleet.history.audit_record import AuditRecord
from localpuppet.fleet.history.day import AUDIT, DAY, RUNS, HistoryDay, history_key
from localpuppet.fleet.history.history_follower import HistoryFollower, read_runs
from localpuppet.fleet.history.node_history import DayLog, HistoryPublisher, PublishedDays
from localpuppet.fleet.history.run_summary import RunSummary
from tests.doubles.identities import person, verifier
from tests.doubles.ports import FakeClock, FakeLog
from tests.fleet.make import a_decision, a_summary
from tests.rigs.bus.raw import raw
from tests.rigs.bus.wire import ALICE, LB01, WEB01, WEB02, EtcdWire, NatsWire
from tests.rigs.servers import NEW_NATS
from tests.rigs.waiting import PATIENCE

NOW = FakeClock().now().timestamp()
WEB = person(WEB01)


class _Dashboard:
    """Ends as soon as it has runs and requests."""

    def __init__(self) -> None:
        self.records: dict[str, list[RunSummary | AuditRecord]] = {}
        self.complete = asyncio.Event()

    async def unknown(self, digests: Mapping[str, bytes]) -> AbstractSet[str]:
        return digests.keys()

    def note_taken(self, key: str, _: bytes) -> None:
        if len(self.records) == 2:
            self.complete.set()

    def note_waiting(self, days: int | None) -> None:
        assert days is not None and days <= 1

    async def take_runs(self, days: Sequence[HistoryDay[RunSummary]]) -> None:
        self._take("runs", days)

    async def take_audit(self, days: Sequence[HistoryDay[AuditRecord]]) -> None:
        self._take("audit", days)

    def _take(
        self, kind: str, days: Sequence[HistoryDay[RunSummary]] | Sequence[HistoryDay[AuditRecord]]
    ) -> None:
        for day in days:
            assert day.node == WEB01
            self.records.setdefault(kind, []).extend(day.records)


@pytest.fixture(scope="module", params=["nats", "etcd"])
def wire(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[NatsWire | EtcdWire]:
    """A server of each engine as documented."""
    directory = tmp_path_factory.mktemp("wire") / request.param
    made = EtcdWire(directory) if request.param == "etcd" else NatsWire(directory, NEW_NATS)
    made.start()

    async def visit() -> None:  # creates the streams of NATS
        admin = await made.connect(made.admin)
        await admin.list(INVENTORY)
        await admin.close()

    asyncio.run(visit())
    yield made
    made.server.stop()


def _publisher(state: Path, node: str, kv: KeyValue) -> HistoryPublisher:
    name = NodeName(node)
    runs, audit = DayLog(state, RUNS), DayLog(state, AUDIT)
    runs.append(name, a_summary(NOW))
    audit.append(name, a_decision(NOW))

    async def store() -> KeyValue:
        return kv

    return HistoryPublisher(
        name,
        (runs, audit),
        PublishedDays(state),
        signer=WEB.signer,
        store=store,
        clock=FakeClock(),
        log=FakeLog(),
    )


async def test_a_node_publishes_runs_and_requests_and_a_dashboard_reads_them(
    wire: NatsWire | EtcdWire, tmp_path: Path
) -> None:
    log, board = FakeLog(), _Dashboard()
    node, dashboard = await wire.connect(WEB01), await wire.connect(ALICE)
    await _publisher(tmp_path / "state", WEB01, node).publish()

    async def store() -> KeyValue:
        return dashboard

    follower = HistoryFollower(
        board, verifier(tmp_path, WEB), store=store, clock=FakeClock(), log=log
    )
    following = asyncio.create_task(follower.run())
    async with asyncio.timeout(PATIENCE):
        await board.complete.wait()
    following.cancel()
    await asyncio.wait([following])
    assert board.records == {"runs": [a_summary(NOW)], "audit": [a_decision(NOW)]}
    assert not log.lines
    await node.close()
    await dashboard.close()


async def test_a_node_cannot_write_the_history_of_another(
    wire: NatsWire | EtcdWire, tmp_path: Path
) -> None:
    node = await wire.connect(WEB01)
    with pytest.raises(RefusedError, match="permission"):
        await _publisher(tmp_path / "state", WEB02, node).publish()
    await node.close()
    today = int(NOW // DAY)
    for kind in (RUNS.kind, AUDIT.kind):
        key = history_key(NodeName(WEB02), kind, today)
        admin = await wire.connect(wire.admin)
        before = await admin.put(key, b"as published")
        async with raw(wire, WEB01) as client:  # below the store: the server refuses
            assert await client.write(key, b"forged") is None
        entry = await admin.get(key)
        assert entry is not None
        assert (entry.value, entry.revision) == (b"as published", before)
        await admin.close()


@pytest.mark.parametrize("who", [WEB01, LB01])
async def test_only_members_with_that_right_read_history(
    wire: NatsWire | EtcdWire, who: str, tmp_path: Path
) -> None:
    """Also a node that may read the inventory."""
    kv = await wire.connect(who)
    with pytest.raises(UnavailableError, match="permission"):
        await kv.list(HISTORY)
    with pytest.raises(RefusedError, match="no right to read history"):
        await read_runs(kv, NodeName(WEB02), verifier(tmp_path, WEB), now=NOW)
    await kv.close()
