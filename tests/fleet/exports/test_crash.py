"""`localpuppet inventory publish` is killed at system calls: others read old or new, whole.

A bounded sample runs with the tests; `scripts/crash` runs every call (CRASH_FULL=1).
"""

import asyncio
import re
import time
from itertools import count
from pathlib import Path

from localpuppet.fleet.bus.layout import INVENTORY, exports_of
from localpuppet.fleet.exports.held import ExportsFollower, HeldExports
from localpuppet.fleet.exports.resource import ExportedResource, PackedResources, pack
from localpuppet.fleet.inventory.admission import ReceivedEntry
from localpuppet.fleet.inventory.chunks import SLOTS, ChunkOutbox, chunks_of, digest_of
from localpuppet.fleet.inventory.entry import ExportsSummary, InventoryEntry
from localpuppet.fleet.inventory.outbox import Outbox
from localpuppet.fleet.inventory.tables import EntryRows
from localpuppet.fleet.inventory.view import View
from localpuppet.fleet.trust.signing import claimed_payload
from tests.doubles.ports import FakeLog
from tests.fleet.inventory.entries import entry
from tests.fleet.make import resource
from tests.rigs.crash_points import crash_points
from tests.rigs.fleet import Fleet
from tests.rigs.member import Member
from tests.rigs.node import COMMAND, PATIENCE, REPOSITORY, Done, completed

# System calls of SQLite and of localpuppet's durable files, and how many of each the tests try.
CALLS = {"pwrite64": 3, "fdatasync": 2, "fsync": 2, "rename": 1}
EACH = 3
CHUNKS = 2


class Publishing:
    def __init__(self, fleet: Fleet, member: Member, directory: Path) -> None:
        self.fleet, self.member = fleet, member
        self.numbers = count(1)
        self.at = time.time() - 3600
        self.outboxes = Outbox(member.node.state), ChunkOutbox(member.node.state / "exports")
        self.view = View(directory / "view.sqlite", now=time.time)
        self.held = HeldExports(directory / "held.sqlite")
        self.log = FakeLog()
        self.follower = ExportsFollower(self.view, self.held, log=self.log)

    def offer(self) -> str:
        """Have other exports wait, of several chunks; return how their titles begin."""
        word = f"version{next(self.numbers)}"
        packed = pack(_large(word, number) for number in range(EACH))
        assert chunks_of(len(packed.data)) == CHUNKS
        self.outboxes[1].write(packed.data)
        self.at += 1
        said = entry(self.member.name, at=self.at, exports=_summary(packed))
        assert self.outboxes[0].offer(said, refresh=3600)
        return word

    def publish(self, *strace: str) -> Done:
        env = self.member.node.environment(PYTHONPATH=str(REPOSITORY))
        traced = ("strace", "-f", "-qq", "-o", f"{self.member.root}/trace", *strace)
        return completed(*traced, *COMMAND, "inventory", "publish", env=env, check=False)

    def calls(self) -> dict[str, int]:
        done = self.publish("-e", f"trace={','.join(CALLS)}")
        assert done.code == 0, done.err
        text = (self.member.root / "trace").read_text()
        return {call: len(re.findall(rf"\b{call}\(", text)) for call in CALLS}

    def read(self) -> str:
        """Return which exports another node has now: all of them, or this raises."""
        return asyncio.run(asyncio.wait_for(self._read(), PATIENCE))

    async def _read(self) -> str:
        async with self.fleet.bus.open() as kv:
            found = await kv.get(INVENTORY + self.member.name)
            assert found is not None
            said = InventoryEntry.parse(claimed_payload(found.value))
            self.view.take(
                [ReceivedEntry(node=said.node, token=found.value, found=EntryRows.of(said))]
            )
            await self.follower.update(kv)
            chunks = await kv.list(exports_of(self.member.name))
        assert self.held.refused() == {}, self.log.text
        titles = sorted(one.resource.title for one in self.held.find())
        words = {title.partition(" ")[0] for title in titles}
        assert (len(titles), len(words)) == (EACH, 1), titles
        places = {one.key.removeprefix(exports_of(self.member.name)) for one in chunks.entries}
        assert places <= {f"{slot}/{number}" for slot in SLOTS for number in range(CHUNKS)}
        return words.pop()


def _large(word: str, number: int) -> ExportedResource:
    """Return a resource that does not become smaller by packing."""
    text = "".join(digest_of(f"{word} {number} {n}".encode()) for n in range(2500))
    return resource("Host", f"{word} {number}", comment=text)


def _summary(packed: PackedResources) -> ExportsSummary:
    return ExportsSummary(count=packed.count, digest=packed.digest, size=len(packed.data))


def test_a_kill_while_publishing_leaves_old_or_new_exports(fleet: Fleet, tmp_path: Path) -> None:
    (member,) = fleet.add("a")
    rig = Publishing(fleet, member, tmp_path / "reader")
    rig.offer()
    assert rig.publish().code == 0
    there = rig.offer()
    totals = rig.calls()
    assert rig.read() == there
    killed = 0
    for call, sample in CALLS.items():
        total = totals[call]
        assert total >= sample, totals
        for number in crash_points(total, sample):
            offered = rig.offer()
            done = rig.publish("-e", f"inject={call}:signal=KILL:when={number}")
            killed += done.code == -9
            found = rig.read()
            assert found in (there, offered), f"{call} {number} of {total}: {done.err}"
            there = found
    assert killed > len(CALLS)
    last = rig.offer()
    assert rig.publish().code == 0  # whatever the dead left
    assert rig.read() == last
