"""How exports cross the bus: readers get old or new ones, never half, despite crashes and lies.

A compromised node has its own key, writes what it likes below its own keys, and signs an entry that
names it.
"""

import asyncio
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.formats.names import NodeName, SignerName
from localpuppet.fleet.bus.key_value import KeyValue, KeyValueEntry
from localpuppet.fleet.bus.layout import exports_of
from localpuppet.fleet.exports.collectors import CollectorResult, Search
from localpuppet.fleet.exports.held import (
    MAX_TRIES,
    SELDOM,
    ExportsFollower,
    HeldExports,
    NodeExports,
    exports_writer,
)
from localpuppet.fleet.exports.recording import CollectorService
from localpuppet.fleet.exports.resource import ExportedResource, PackedResources, pack
from localpuppet.fleet.inventory.admission import ReceivedEntry, Tombstone
from localpuppet.fleet.inventory.chunks import CHUNK, ChunkOutbox, ChunkWriter, digest_of
from localpuppet.fleet.inventory.entry import ExportsSummary, InventoryEntry
from localpuppet.fleet.inventory.entry_publisher import PublisherIdentity, publish
from localpuppet.fleet.inventory.tables import EntryRows
from localpuppet.fleet.inventory.view import View
from localpuppet.fleet.trust.signing import MessageKind
from tests.doubles.identities import person, verifier
from tests.doubles.memory_store import MemoryKeyValue, MemoryStore
from tests.doubles.ports import FakeLog
from tests.fleet.inventory.entries import entry
from tests.fleet.make import random_text, resource

WEB = person("web01.example.com")
NAME = NodeName(WEB.name)
NOW = 1_800_000_000.0
OLD = [resource("Host", "old", ip="10.0.0.1")]
# Three chunks, packed.
NEW = [resource("Host", f"new{n}", comment=random_text(CHUNK // 12, n)) for n in range(30)]


class Killed(BaseException):
    """The writer died."""


@dataclass
class Rig:
    directory: Path
    store: MemoryStore = field(default_factory=MemoryStore)
    log: FakeLog = field(default_factory=FakeLog)
    at: float = NOW

    def __post_init__(self) -> None:
        self.directory.mkdir(exist_ok=True)
        self.kv = MemoryKeyValue(self.store)
        self.verifier = verifier(self.directory, WEB)
        self.outbox = ChunkOutbox(self.directory / "writer" / "exports")
        self.view = View(self.directory / "reader" / "view.sqlite", now=lambda: self.at)
        self.held = HeldExports(self.directory / "reader" / "held.sqlite")
        self.follower = ExportsFollower(self.view, self.held, log=self.log)

    def voice(self) -> PublisherIdentity:
        """Return the voice of the node as it is after a restart."""
        return PublisherIdentity(
            node=NAME, signer=WEB.signer, verifier=self.verifier, baggage=[self.writer()]
        )

    def writer(self) -> ChunkWriter:
        return exports_writer(NAME, self.outbox)

    def entry_for(self, packed: PackedResources) -> InventoryEntry:
        self.at += 1
        summary = ExportsSummary(
            count=packed.count, digest=packed.digest or None, size=len(packed.data)
        )
        return entry(NAME, at=self.at, exports=summary)

    async def publish(
        self, resources: list[ExportedResource], *, kv: KeyValue | None = None
    ) -> InventoryEntry:
        packed = pack(resources)
        if packed.count:
            self.outbox.write(packed.data)
        said = self.entry_for(packed)
        await publish(kv or self.kv, said.to_payload(), self.voice())
        self.arrive(said)
        return said

    def arrive(self, said: InventoryEntry) -> None:
        """Have the view take an entry, as the inventory does."""
        token = WEB.signer.sign(said.to_payload(), MessageKind.INVENTORY)
        self.view.take([ReceivedEntry(node=NAME, token=token, found=EntryRows.of(said))])

    async def join(self, number: int, *, said: int = 1) -> None:
        """Have another node export a host; `said` is the number in its entry."""
        name = NodeName(f"n{number}.example.com")
        packed = pack([resource("Host", f"h{number}")])
        await self.kv.put(f"{exports_of(name)}a/0", packed.digest.encode() + b"\n" + packed.data)
        summary = ExportsSummary(count=said, digest=packed.digest, size=len(packed.data))
        told = entry(name, at=NOW, exports=summary)
        token = WEB.signer.sign(told.to_payload(), MessageKind.INVENTORY)
        self.view.take([ReceivedEntry(node=name, token=token, found=EntryRows.of(told))])

    async def read(self, kv: KeyValue | None = None) -> list[str]:
        await self.follower.update(kv or self.kv)
        return self.titles()

    def titles(self) -> list[str]:
        return [one.resource.title for one in self.held.find()]

    def chunks(self) -> list[str]:
        prefix = exports_of(NAME)
        return sorted(key.removeprefix(prefix) for key in self.store.kept if prefix in key)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


async def test_published_exports_are_stored_and_unchanged_ones_are_not_sent_again(rig: Rig) -> None:
    await rig.publish(NEW)
    assert len(await rig.read()) == 30
    before = rig.store.revision
    said = rig.entry_for(pack(NEW))
    # As an hourly publication: only the entry is new.
    await publish(rig.kv, said.to_payload(), rig.voice())
    assert rig.store.revision == before + 1
    held = rig.held.digests()
    rig.arrive(said)
    assert (await rig.read(), rig.held.digests()) == (sorted(one.title for one in NEW), held)


class Away(MemoryKeyValue):
    """A bus that refuses each read."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.asked: set[str] = set()

    async def get(self, key: str) -> KeyValueEntry | None:
        self.asked.add(key)
        raise UnavailableError("is unreachable", where="bus")


class Dying(MemoryKeyValue):
    """A bus to which a writer writes so often before it dies."""

    def __init__(self, store: MemoryStore, writes: int) -> None:
        super().__init__(store)
        self.left = writes

    async def put(self, key: str, value: bytes, *, ttl: float | None = None) -> int:
        if self.left == 0:
            raise Killed
        self.left -= 1
        return await super().put(key, value, ttl=ttl)


async def test_a_reader_gets_old_or_new_exports_wherever_the_writer_dies(tmp_path: Path) -> None:
    writes = 0
    while True:
        rig = Rig(tmp_path / str(writes))
        # Twice, so that both slots are in use.
        await rig.publish([resource("Host", "older")])
        old = await rig.publish(OLD)
        dying = Dying(rig.store, writes)
        try:
            await rig.publish(NEW, kv=dying)
        except Killed:
            rig.arrive(old)
            assert await rig.read() == ["old"]
            assert rig.held.refused() == {}
            await rig.publish(NEW)  # after a restart
            assert len(await rig.read()) == 30
            assert len({key[0] for key in rig.chunks()}) == 2
            writes += 1
            continue
        assert writes == 4  # three chunks and the entry
        assert len(await rig.read()) == 30
        return


async def test_a_writer_without_the_right_to_read_keeps_the_chunks_of_the_entry(rig: Rig) -> None:
    blind = Away(rig.store)
    await rig.publish([resource("Host", "older")], kv=blind)
    old = await rig.publish(OLD, kv=blind)
    packed = pack(NEW)
    rig.outbox.write(packed.data)
    # All chunks have arrived, and the entry has not.
    await rig.writer().bring(blind, rig.entry_for(packed), None)
    rig.arrive(old)
    assert await rig.read() == ["old"]


@pytest.mark.parametrize("damage", ["missing", "other", "replaced"])
async def test_chunks_that_do_not_match_the_entry_change_nothing(rig: Rig, damage: str) -> None:
    await rig.publish(OLD)
    assert await rig.read() == ["old"]
    await rig.publish(NEW)
    key = next(key for key in sorted(rig.store.kept) if key.endswith("b/1"))
    if damage == "missing":
        rig.store.remove(key)
    elif damage == "other":
        await rig.kv.put(key, rig.store.kept[key].entry.value[:-1] + b"x")
    else:
        evil = pack([resource("Exec", "x")])
        await rig.kv.put(key, evil.digest.encode() + b"\n" + evil.data)
    for _ in range(MAX_TRIES + 3):
        assert await rig.read() == ["old"]
    (refused,) = rig.held.refused().values()
    assert (refused.node, refused.tries) == (NAME, MAX_TRIES)
    assert "does not hold the bytes" in refused.reason
    assert rig.log.text.count("since its last run") == 1
    # The next publication heals it.
    await rig.publish([resource("Host", "newer")])
    assert await rig.read() == ["newer"]
    assert rig.held.refused() == {}


async def test_an_entry_that_names_too_much_or_rubbish_is_refused(rig: Rig) -> None:
    await rig.publish(OLD)
    assert await rig.read() == ["old"]
    rubbish = b"not packed"
    digest = digest_of(rubbish)
    await rig.kv.put(f"{exports_of(NAME)}a/0", digest.encode() + b"\n" + rubbish)
    packed = pack(NEW)
    await rig.publish(NEW)
    for summary, reason in (
        (ExportsSummary(count=1, digest=digest, size=2**40), "are allowed"),
        (ExportsSummary(count=1, digest=digest, size=len(rubbish)), "not hold the bytes"),
        (ExportsSummary(count=7, digest=packed.digest, size=len(packed.data)), "entry names 7"),
    ):
        rig.at += 1
        rig.arrive(entry(NAME, at=rig.at, exports=summary))
        assert await rig.read() == ["old"]
        assert reason in rig.held.refused()[NAME].reason


async def test_a_bus_that_refuses_a_read_is_asked_again(rig: Rig) -> None:
    await rig.publish(OLD)

    for _ in range(MAX_TRIES + 1):
        await rig.follower.update(Away(rig.store))
    for ask in (rig.titles, lambda: list(rig.held.find())):
        with pytest.raises(UnavailableError, match=f"{NAME} exports was never read: bus: is unrea"):
            ask()
    assert list(rig.held.find(node="other.example.com")) == []
    assert await rig.read() == ["old"]
    # What was read stays in force.
    await rig.publish(NEW)
    assert await rig.read(Away(rig.store)) == ["old"]
    assert "is unreachable" in rig.held.refused()[NAME].reason


@pytest.mark.parametrize("restarted", [True, False])
async def test_a_bus_that_is_whole_again_is_noticed(rig: Rig, *, restarted: bool) -> None:
    passed = 0.0

    def follow() -> ExportsFollower:
        return ExportsFollower(rig.view, rig.held, log=rig.log, seconds=lambda: passed)

    rig.follower = follow()
    await rig.publish(OLD)
    there = {key: one.entry.value for key, one in rig.store.kept.items()}
    for key in there:
        rig.store.remove(key)
    for _ in range(MAX_TRIES + 1):
        assert await rig.read() == []
    for key, value in there.items():
        await rig.kv.put(key, value)
    assert await rig.read() == []  # the limit of tries is reached, for now
    if restarted:
        rig.follower = follow()
    else:
        passed = SELDOM
    assert await rig.read() == ["old"]


async def test_exports_of_a_forgotten_node_are_dropped_and_stay_away(rig: Rig) -> None:
    await rig.publish(OLD)
    assert await rig.read() == ["old"]
    rig.view.forget(Tombstone(node=NAME, at=rig.at), by=SignerName("alice"))
    assert await rig.read() == []
    # A newer entry without its chunks does not restore the forgotten exports.
    rig.arrive(rig.entry_for(pack(NEW)))
    assert await rig.read() == []


async def test_exports_of_a_node_that_is_forgotten_during_the_read_are_dropped(rig: Rig) -> None:
    await rig.publish(OLD)

    class Slow(MemoryKeyValue):
        async def get(self, key: str) -> KeyValueEntry | None:
            rig.view.forget(Tombstone(node=NAME, at=rig.at), by=SignerName("alice"))
            rig.follower.drop(NAME)
            return await super().get(key)

    assert await rig.read(Slow(rig.store)) == []


async def test_a_damaged_copy_is_fetched_again(rig: Rig) -> None:
    await rig.publish(OLD)
    assert await rig.read() == ["old"]
    rig.held.close()
    for path in (rig.directory / "reader").glob("held.sqlite*"):
        path.write_bytes(b"rubbish" * 1000)
    assert await rig.read() == ["old"]


async def test_a_rebuilt_copy_gives_no_answer_before_it_is_whole(rig: Rig) -> None:
    await rig.publish(OLD)
    rig.view.note(current=rig.at)
    asked: list[str] = []

    class Watched(MemoryKeyValue):
        async def get(self, key: str) -> KeyValueEntry | None:
            with pytest.raises(UnavailableError, match="never read: not read from the bus yet"):
                rig.titles()
            asked.append(key)
            return await super().get(key)

    assert await rig.read(Watched(rig.store)) == ["old"]
    assert asked
    rig.held.rebuild()
    assert await rig.read(Watched(rig.store)) == ["old"]


async def test_after_failed_reads_the_other_nodes_wait_and_the_answer_is_an_error(rig: Rig) -> None:
    for number in range(9):
        await rig.join(number)
    rig.follower = ExportsFollower(rig.view, rig.held, log=rig.log, at_once=2)
    await rig.follower.update(away := Away(rig.store))
    assert (len(away.asked), len(rig.held.refused())) == (2, 9)
    with pytest.raises(UnavailableError, match="is unreachable"):
        rig.titles()
    assert len(await rig.read()) == 9


async def test_updates_do_not_overlap(rig: Rig) -> None:
    await rig.publish(NEW)
    await asyncio.gather(*(rig.follower.update(rig.kv) for _ in range(3)))
    assert len(rig.titles()) == 30


async def test_exports_of_many_nodes_are_stored_in_few_transactions(rig: Rig) -> None:
    """Also if a node offers rubbish, and if there is no room for another."""
    wrote: list[int] = []

    class Counted(HeldExports):
        def hold_all(self, nodes: Sequence[NodeExports]) -> list[NodeExports]:
            wrote.append(len(nodes))
            return super().hold_all(nodes)

    rig.held = Counted(rig.directory / "reader" / "held.sqlite")
    rig.follower = ExportsFollower(rig.view, rig.held, log=rig.log, at_once=2, together=3)
    for number in range(9):
        await rig.join(number, said=2 if number == 4 else 1)
    assert await rig.read() == [f"h{number}" for number in range(9) if number != 4]
    assert list(rig.held.refused()) == ["n4.example.com"]
    assert wrote == [3, 3, 2]
    await rig.read()
    assert wrote == [3, 3, 2]


async def test_chunks_that_no_entry_names_any_more_are_removed(rig: Rig) -> None:
    await rig.publish(NEW)
    assert len(await rig.read()) == 30
    await rig.publish([])
    assert await rig.read() == []
    assert rig.chunks()  # readers of the entry before may still fetch them
    await rig.publish([])
    assert rig.chunks() == []
    assert rig.outbox.landed() is None


def test_the_outbox_keeps_the_named_packs(tmp_path: Path) -> None:
    outbox = ChunkOutbox(tmp_path / "exports")
    assert outbox.landed() is None
    old, new = pack(OLD), pack(NEW)
    for one in (old, new):
        outbox.write(one.data)
    outbox.keep({new.digest})
    assert outbox.read(new.digest) == new.data
    assert [path.name for path in (tmp_path / "exports" / "offered").iterdir()] == [new.digest]


POLICY = f"{NAME}\tHost\t*\n{NAME}\tFile\t/srv/*\n"


def written(kind: str, title: str, **parameters: Any) -> dict[str, Any]:
    return resource(kind, title, **parameters).to_dict()


class TakenOver(Rig):
    """A node that an attacker has taken over and speaks for."""

    async def offer(self, *resources: dict[str, Any]) -> None:
        """Publish what localpuppet itself would not."""
        data = zlib.compress(json.dumps({"schema": 1, "resources": resources}).encode())
        packed = PackedResources(data=data, digest=digest_of(data), count=len(resources))
        self.outbox.write(packed.data)
        said = self.entry_for(packed)
        await publish(self.kv, said.to_payload(), self.voice())
        self.arrive(said)

    def collect(self, kind: str) -> CollectorResult:
        policy = self.directory / "collect.policy"
        policy.write_text(POLICY)
        collecting = CollectorService(self.held, me="me.example.com", policy=policy)
        return collecting.collect(kind, Search.parse(None))


@pytest.mark.parametrize(
    "said",
    [
        written("Host", "a\x1b[2Jb"),
        written("Host", "a\nb"),
        written("Host", "a", comment="x" * 10 * 1024**2),
        written("Host", "a", comment={"__ptype": "Deferred", "name": "system"}),
        written("Host", "a") | {"node": "db01.example.com"},
        written("Class", "a") | {"type": "file; rm"},
    ],
    ids=["escape", "newline", "10 MB", "deferred", "another's", "type"],
)
async def test_invalid_resources_change_nothing(tmp_path: Path, said: dict[str, Any]) -> None:
    evil = TakenOver(tmp_path)
    await evil.publish(OLD)
    await evil.read()
    await evil.offer(said)
    assert await evil.read() == ["old"]
    assert list(evil.held.refused()) == [NAME]
    (taken,) = evil.collect("Host").taken  # what it published before the attack
    assert taken.resource.title == "old"


async def test_valid_resources_of_attackers_are_checked_against_the_policy(tmp_path: Path) -> None:
    evil = TakenOver(tmp_path)
    guarded = {"alias": "sshd", "require": "File[/x]", "notify": "Exec[x]", "provider": "evil"}
    await evil.offer(
        written("Exec", "/bin/sh -c evil"),
        written("File", "/etc/sudoers", content="evil ALL"),
        written("File", "/srv/../etc/sudoers", content="evil ALL"),
        written("File", "/srv/x", path="/etc/sudoers", content="evil ALL"),
        written("Host", "h", ip="10.0.0.1", **guarded),
        written("Evil::Own", "x"),
    )
    await evil.read()
    for kind in ("Exec", "Evil::Own"):
        with pytest.raises(InvalidInputError, match=f"{NAME} exports it, and no .* names {kind}"):
            evil.collect(kind)
    (host,) = evil.collect("Host").taken
    assert dict(host.resource.parameters) == {"ip": "10.0.0.1"}
    files = evil.collect("File")
    assert [(one.resource.title, one.dropped) for one in files.taken] == [("/srv/x", ("path",))]
    reasons = [one.reason.partition(",")[0] for one in files.left_out]
    assert reasons == ["no policy line covers this signer and title", "its title has '..'"]
