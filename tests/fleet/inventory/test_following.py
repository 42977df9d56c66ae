"""How the view follows the bus: real keys, a store in memory, files of trust that change."""

import asyncio
import zlib
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import IntegrityError, NotInForceError, StateError, UnavailableError
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.bus.bus_limits import MAX_ENTRY
from localpuppet.fleet.bus.key_value import Change, KeyListing, KeyValue, KeyWrite, RefusedError
from localpuppet.fleet.bus.layout import TOMBSTONES
from localpuppet.fleet.inventory.admission import EntryAdmission, ReceivedEntry, Tombstone
from localpuppet.fleet.inventory.following import REST, Pauses, ViewFollower
from localpuppet.fleet.inventory.view import View
from localpuppet.fleet.trust.key_files import TrustedKeys
from localpuppet.fleet.trust.signing import MessageKind, Signed, Verifier
from tests.doubles.identities import Person, person, trusting
from tests.doubles.inventory import NoCompanion
from tests.doubles.memory_store import MemoryKeyValue, MemoryStore
from tests.doubles.ports import FakeClock, FakeLog
from tests.fleet.inventory.entries import entry, key_of, signed

WEB, DB, ALICE = person("web01.example.com"), person("db01.example.com"), person("alice")
POLICY = "policy default deny\nallow\tchoria=alice\tforget\t*\t*\n"
PAUSES = Pauses(look=0.01, beat=0.01, settle=0.02, again=0.01, refused=0.01)


class Node:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = FakeClock()
        self.store = MemoryStore(now=self.clock.monotonic)
        self.changed = asyncio.Event()
        self.kv = MemoryKeyValue(self.store)
        self.log = FakeLog()
        self.trusted: TrustedKeys = trusting(directory / "trusted", WEB, DB, ALICE)
        self.policy = directory / "puppet.policy"
        self.policy.write_text(POLICY)
        self.claims = directory / "inventory.policy"
        self.trust = "1"
        self.verified = 0
        self.cost = 0.0  # seconds that an entry takes
        self.companion = NoCompanion()
        self.online: dict[str, dict[str, Any]] = {}
        self.view = View(directory / "view.sqlite", now=self.seconds)

    def seconds(self) -> float:
        return self.clock.now().timestamp()

    def follower(self) -> ViewFollower:
        node = self

        class Counting(Verifier):
            def verify(self, token: bytes, kind: MessageKind):  # type: ignore[no-untyped-def]  # noqa: ANN202
                node.verified += 1
                node.clock.advance(node.cost)
                return super().verify(token, kind)

        async def store() -> KeyValue:
            if self.store.away:
                raise UnavailableError("is unreachable", where="bus")
            return self.kv

        async def online(_: KeyValue) -> Mapping[str, Mapping[str, Any]]:
            return self.online

        admission = EntryAdmission(
            Counting(self.trusted, None, self.clock),
            claims=self.claims,
            policy=self.policy,
            now=self.seconds,
        )
        return ViewFollower(
            self.view,
            store=store,
            admission=admission,
            trust=lambda: self.trust,
            probe=key_of("me"),
            companion=self.companion,
            online=online,
            clock=self.clock,
            log=self.log,
            changed=self.changed.set,
            pauses=PAUSES,
        )

    @asynccontextmanager
    async def following(self) -> AsyncGenerator[None, None]:
        leave = asyncio.Event()
        task = asyncio.create_task(self.follower().follow(leave))
        try:
            yield
        finally:
            leave.set()
            await task

    async def says(
        self, by: Person, node: str | None = None, *, age: float = 0.0, **more: object
    ) -> None:
        said = entry(str(by.name), at=self.seconds() - age, **more)
        await self.kv.put(key_of(node or by.name), signed(by, said))

    def nodes(self) -> list[str]:
        return [one.node for one in self.view.entries()]

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.view.close()


async def test_each_change_of_the_view_is_signalled(node: Node) -> None:
    async with node.following():
        await node.until(lambda: node.view.current_until() is not None)
        node.changed.clear()
        await node.says(WEB)
        await node.changed.wait()
        assert node.nodes() == [WEB.name]
        node.changed.clear()
        node.trust = "other"
        await node.changed.wait()


async def test_stored_and_new_entries_are_in_the_view(node: Node) -> None:
    await node.says(WEB)
    async with node.following():
        await node.until(lambda: node.nodes() == [WEB.name])
        await node.says(DB, roles=("db",))
        await node.until(lambda: node.nodes() == [DB.name, WEB.name])
        await node.until(lambda: node.view.current_until() == node.seconds())
    assert node.view.revision == 2


async def test_an_empty_bus_makes_an_empty_view_that_is_current(node: Node) -> None:
    async with node.following():
        await node.until(lambda: node.view.current_until() is not None)
    assert node.nodes() == []


async def test_an_outage_ages_the_view_and_removes_nothing(node: Node) -> None:
    await node.says(WEB)
    async with node.following():
        await node.until(lambda: node.view.current_until() is not None)
        current = node.seconds()
        node.store.away = True
        node.store.wake()
        # The owner of the connection logs an outage: here it is a detail.
        await node.until(lambda: any("is not current" in text for _, text in node.log.lines))
        assert {level for level, text in node.log.lines if "is not current" in text} == {"debug"}
        node.clock.advance(60)
        assert node.view.current_until() == current
        assert node.nodes() == [WEB.name]
        node.store.away = False
        await node.says(DB)
        await node.until(lambda: node.nodes() == [DB.name, WEB.name])
        await node.until(lambda: node.view.current_until() == current + 60)


async def test_a_key_that_vanishes_removes_nothing(node: Node) -> None:
    await node.says(WEB)
    async with node.following():
        await node.until(node.nodes)
        node.store.remove(key_of(WEB.name))
        await node.says(DB)
        await node.until(lambda: node.nodes() == [DB.name, WEB.name])
    await node.follower().list_once()
    assert node.nodes() == [DB.name, WEB.name]


async def test_known_entries_are_not_verified_again(node: Node) -> None:
    await node.says(WEB)
    await node.says(DB)
    await node.follower().list_once()
    assert node.verified == 2
    await node.follower().list_once()
    assert node.verified == 2


@pytest.mark.parametrize(
    ("token", "said"),
    [
        (signed(DB, entry(str(DB.name), at=0.0)), "found at the key of web01"),
        (signed(person("web01.example.com"), entry(str(WEB.name), at=9e9)),
         "signature does not match"),
        (b"rubbish", "three base64url parts"),
        (WEB.signer.sign(zlib.compress(bytes(MAX_ENTRY + 1)), MessageKind.INVENTORY), "too large"),
        (WEB.signer.sign(b"{}", MessageKind.INVENTORY), "not packed"),
        (WEB.signer.sign(b"{}", MessageKind.PRESENCE), "lp-inventory is needed"),
        (signed(WEB, entry(str(WEB.name), at=9e9)), "in the future"),
        (signed(WEB, entry(str(WEB.name), at=9e8, facts={"fqdn": "db01.example.com"})),
         "its fqdn is not"),
    ],
    ids=["another's", "forged", "rubbish", "bomb", "unpacked", "kind", "future", "name"],
)  # fmt: skip
async def test_an_unverified_entry_has_its_reason(node: Node, token: bytes, said: str) -> None:
    await node.says(WEB, roles=("web",))
    await node.follower().list_once()
    before = node.view.entry(NodeName(WEB.name))
    await node.kv.put(key_of(WEB.name), token)
    await node.says(DB)
    await node.follower().list_once()
    assert node.view.entry(NodeName(WEB.name)) == before
    assert node.nodes() == [DB.name, WEB.name]
    (refused,) = node.view.refused()
    assert (refused.node, said in refused.reason) == (WEB.name, True), refused


async def test_claims_that_no_line_allows_are_refused(node: Node) -> None:
    node.claims.write_text("web01.example.com\tweb\t10.0.0.0/8\n")
    await node.says(WEB, roles=("db",))
    await node.follower().list_once()
    assert node.nodes() == []
    assert "may not claim the role 'db'" in node.view.refused()[0].reason


async def test_revoking_a_key_removes_an_entry_at_once_and_pinning_restores_it(node: Node) -> None:
    await node.says(WEB)
    async with node.following():
        await node.until(node.nodes)
        (node.directory / "trusted" / f"{WEB.name}.pem").unlink()
        node.trust = "2"
        await node.until(lambda: node.nodes() == [])
        assert "no key of web01" in node.view.refused()[0].reason
        node.trusted.pin(WEB.name, WEB.key.public_key())
        node.trust = "3"
        await node.until(node.nodes)
    assert node.view.refused() == []


async def test_replacing_a_key_removes_the_entry_of_the_old_key(node: Node) -> None:
    await node.says(WEB)
    await node.follower().list_once()
    node.trusted.pin(WEB.name, person(str(WEB.name)).key.public_key(), replace=True)
    node.trust = "2"
    await node.follower().list_once()
    assert node.nodes() == []


async def test_a_revocation_while_no_agent_was_running_counts_too(node: Node) -> None:
    await node.says(WEB)
    await node.follower().list_once()
    (node.directory / "trusted" / f"{WEB.name}.pem").unlink()
    node.trust = "2"
    node.store.away = True
    with pytest.raises(UnavailableError):
        await node.follower().list_once()
    node.store.away = False
    await node.follower().list_once()
    assert node.nodes() == []


async def test_an_unreadable_policy_removes_no_node(node: Node) -> None:
    await node.says(WEB)
    await node.follower().list_once()
    node.claims.write_text("not a policy\n")
    node.trust = "2"
    await node.follower().list_once()
    assert node.nodes() == [WEB.name]


async def _bury(node: Node, by: Person, *, about: str | None = None) -> None:
    stone = Tombstone(node=NodeName(about or WEB.name), at=node.seconds())
    token = by.signer.sign(stone.to_payload(), MessageKind.TOMBSTONE)
    await node.kv.put(f"{TOMBSTONES}{WEB.name}", token)


async def test_a_member_with_the_right_can_forget_a_node(node: Node) -> None:
    await node.says(WEB, age=1)
    async with node.following():
        await node.until(node.nodes)
        await _bury(node, ALICE)
        await node.until(lambda: node.nodes() == [])
        node.clock.advance(1)
        await node.says(WEB)
        await node.until(node.nodes)
    await node.follower().list_once()
    assert node.nodes() == [WEB.name]


@pytest.mark.parametrize(
    ("by", "about", "policy", "said"),
    [
        (DB, None, POLICY, "denied by policy"),
        (ALICE, None, "policy default deny\nallow\tchoria=alice\t*\t*\t*\n", "denied by policy"),
        (ALICE, DB.name, POLICY, "is about db01"),
        (person("alice"), None, POLICY, "signature does not match"),
        (ALICE, None, None, "no policy"),
    ],
    ids=["not allowed", "a star is not forget", "another node", "forged", "no file"],
)
async def test_a_member_without_the_right_cannot_forget_a_node(
    node: Node, by: Person, about: str | None, policy: str | None, said: str
) -> None:
    if policy is None:
        node.policy.unlink()
    else:
        node.policy.write_text(policy)
    await node.says(WEB, age=1)
    await _bury(node, by, about=about)
    await node.follower().list_once()
    assert node.nodes() == [WEB.name]
    assert any(said in text for _, text in node.log.lines), node.log.lines


async def test_a_damaged_view_is_rebuilt(node: Node) -> None:
    await node.says(WEB)
    await node.follower().list_once()
    (node.directory / "view.sqlite").write_bytes(b"rubbish" * 999)
    async with node.following():
        await node.until(lambda: any("rebuilding" in text for _, text in node.log.lines))
        await node.until(lambda: node.nodes() == [WEB.name])


async def test_a_full_disk_does_not_end_the_follower(node: Node) -> None:
    full = [True, True, True]

    class Full(View):
        def take(self, arrived: Iterable[ReceivedEntry], *, revision: int | None = None) -> None:
            if full:
                full.pop()
                raise StateError("No space left on device", where="view.sqlite")
            super().take(arrived, revision=revision)

    node.view = Full(node.directory / "view.sqlite", now=node.seconds)
    await node.says(WEB)
    async with node.following():
        await node.until(lambda: not full)
        assert node.view.current_until() is None or not full
        await node.until(node.nodes)
    assert any("No space left" in text for _, text in node.log.lines)


async def test_a_node_without_the_right_to_read_logs_it_once_and_retries_seldom(node: Node) -> None:
    follower = node.follower()
    refused = RefusedError("permission denied", where="bus etcd")
    assert [follower._pause(refused) for _ in range(3)] == [PAUSES.not_allowed] * 3
    assert node.log.text.count("the inventory is not current: bus etcd: permission denied") == 1


@pytest.mark.parametrize(
    ("problem", "believed"),
    [
        (NotInForceError("the certificate of web01, or of its CA, has expired"), True),
        (IntegrityError("the certificate of web01 is revoked"), False),
    ],
    ids=["a date has passed", "revoked"],
)
def test_an_expired_certificate_or_list_removes_no_entry(
    tmp_path: Path, problem: IntegrityError, believed: bool
) -> None:
    """Entries from before a certificate or list expired stay trusted; new entries are rejected."""

    class Dated(Verifier):
        def verify(self, token: bytes, kind: MessageKind) -> Signed:
            raise problem

    admission = EntryAdmission(
        Dated(TrustedKeys(tmp_path), None, FakeClock()),
        claims=tmp_path / "none",
        policy=tmp_path / "none",
        now=lambda: 0.0,
    )
    assert (admission.distrust(WEB.name, b"token") is None) is believed
    [(_, entry)] = admission.entries({WEB.name: b"token"})
    assert isinstance(entry, str)


async def test_a_view_is_not_current_before_nodes_are_back_on_an_empty_bus(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.store.born = node.seconds() - 1
    started = datetime.fromtimestamp(node.store.born - 1, UTC).isoformat()
    node.online = {str(WEB.name): {"started_at": started, "has_entry": True}}
    with pytest.raises(UnavailableError, match=r"lost its data, and has no entry yet of web01\."):
        await node.follower().list_once()
    assert node.view.current_until() is None
    async with node.following():
        while not node.log.lines:  # why
            await asyncio.sleep(0.01)
        assert node.view.current_until() is None
        await node.kv.put(key_of(WEB.name), signed(WEB, entry(str(WEB.name), at=node.seconds())))
        while node.view.current_until() is None:
            await asyncio.sleep(0.01)
    node.online[str(DB.name)] = {"started_at": started, "has_entry": False}  # no good run yet
    assert (await node.follower().list_once()).names == (str(DB.name),)


async def test_a_change_right_behind_the_listing_leaves_it_listed(tmp_path: Path) -> None:
    node = Node(tmp_path)

    class Busy(MemoryKeyValue):
        async def watch(self, prefix: str, **how: Any) -> AsyncGenerator[Change, None]:
            async for change in super().watch(prefix, **how):
                yield change
                if isinstance(change, KeyListing):
                    for one in change.entries:
                        yield KeyWrite(entry=one)

    await node.says(WEB)
    node.kv = Busy(node.store)
    async with node.following():
        await node.until(lambda: node.view.current_until() is not None)
    assert node.nodes() == [WEB.name]


async def test_a_new_bus_restarts_the_revisions_of_the_view(tmp_path: Path) -> None:
    node = Node(tmp_path)
    for _ in range(5):
        await node.says(DB)
    await node.says(WEB)
    await node.follower().list_once()
    kept = await node.kv.get(key_of(WEB.name))
    assert (node.view.revision, node.view.since(5)) == (6, {WEB.name})
    node.store = MemoryStore(now=node.clock.monotonic)
    node.kv = MemoryKeyValue(node.store)
    assert kept is not None
    await node.kv.put(key_of(WEB.name), kept.value)
    await node.follower().list_once()
    assert node.view.revision == 1
    assert node.view.since(1) == set(), "the listing had nothing new"
    await node.says(DB, age=-1)
    await node.follower().list_once()
    assert node.view.since(1) == {DB.name}


async def test_a_node_whose_entries_take_long_keeps_no_other_waiting(node: Node) -> None:
    async with node.following():
        node.cost = 2.0
        await node.says(WEB)
        await node.until(node.nodes)
        node.cost = 0.0
        for role in ("a", "b"):
            await node.says(WEB, roles=(role,))
        await node.says(DB)
        await node.until(lambda: node.nodes() == [DB.name, WEB.name])
        assert [one.roles for one in node.view.nodes()] == [(), ()]
        verified = node.verified
        node.clock.advance(REST * 2.0)
        await node.until(lambda: [one.roles for one in node.view.nodes()] == [(), ("b",)])
        assert node.verified == verified + 1
        await node.says(WEB, roles=("c",))
        await node.until(lambda: [one.roles for one in node.view.nodes()] == [(), ("c",)])
