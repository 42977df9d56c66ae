"""Rollout commands over a bus: trusted senders, what a command is bound to, and replies."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.formats.names import RolloutId, SignerName
from localpuppet.fleet.bus import layout
from localpuppet.fleet.bus.key_value import RefusedError
from localpuppet.fleet.trust.signing import MessageKind
from localpuppet.rollout.checkpoints import PublishedCheckpoint, RolloutCheckpoint
from localpuppet.rollout.commands import (
    WORDS,
    BusCommandReader,
    RolloutCommand,
    SentCommand,
    SignedCommand,
    Take,
    digest_of,
    read_commands,
    send_over_bus,
)
from localpuppet.rollout.events import Event, RolloutPaused, RolloutResumed
from localpuppet.rollout.journal import Journals
from tests.doubles.identities import Person, person, verifier
from tests.doubles.memory_store import MemoryKeyValue, MemoryStore
from tests.doubles.ports import FakeClock
from tests.doubles.simulated_loop import run_simulated
from tests.rollout.simulated import ID, began

AT = "2026-11-22T11:00:00.000000Z"
PAUSED = RolloutPaused(reason="1 node failed")
ALICE = SignerName("alice")


class Site:
    """Alice's rollout on one machine; Alice, Bob with the right, and Carol on another."""

    def __init__(self, directory: Path) -> None:
        self.alice, self.bob, self.carol = person("alice"), person("bob"), person("carol")
        self.verifier = verifier(directory, self.alice, self.bob, self.carol)
        self.clock = FakeClock()
        self.store = MemoryStore(now=self.clock.monotonic)
        self.kv = MemoryKeyValue(self.store)
        self.journal = Journals(directory / "rollouts").begin(began([1], [2]), at=AT)
        self.taken: list[SentCommand] = []
        self.refusal = ""
        self.read: Callable[[Take], Coroutine[Any, Any, None]] = self.hearing(self.kv).read

    def hearing(self, kv: MemoryKeyValue) -> BusCommandReader:
        return BusCommandReader(
            kv,
            signer=self.alice.signer,
            verifier=self.verifier,
            journal=self.journal,
            denied=lambda who: "" if who == "bob" else f"denied by policy line 1: {who}",
            clock=self.clock,
        )

    def take(self, said: SentCommand) -> str:
        self.taken.append(said)
        return self.refusal

    def head(self, *, epoch: int = 1, rollout: RolloutId = ID) -> PublishedCheckpoint:
        """Return the present checkpoint of the journal."""
        events = tuple(self.journal.events())
        head = RolloutCheckpoint(rollout=rollout, epoch=epoch, events=events)
        return PublishedCheckpoint(head=head, revision=1, signer=ALICE)

    def happens(self, *events: Event) -> None:
        self.journal.append(*events, at=AT)

    async def say(
        self, who: Person, command: RolloutCommand, to: PublishedCheckpoint, about: str = ""
    ) -> None:
        caller = who.name.caller
        await send_over_bus(
            self.kv,
            SentCommand(command=command, caller=caller, machine="laptop", about=about),
            owner=ALICE,
            to=to,
            signer=who.signer,
            verifier=self.verifier,
            clock=self.clock,
        )

    def put(self, token: bytes, name: str = "x") -> None:
        self.store.write(f"{layout.commands_of('bob', 'alice')}{ID}/{name}", token, None)

    def spoken(self, **changes: object) -> SignedCommand:
        now = int(self.clock.now().timestamp())
        fresh = SignedCommand(
            caller=self.bob.name,
            receiver=ALICE,
            iat=now,
            exp=now + 60,
            jti="3f2504e0-4f89-41d3-9a0c-0305e82c3301",
            owner=ALICE,
            rollout=ID,
            epoch=1,
            events=len(self.journal.events()),
            digest=digest_of(self.journal.events()),
            command=RolloutCommand.STOP,
            machine="laptop",
        )
        return replace(fresh, **changes)  # type: ignore[arg-type]

    def signed(self, spoken: SignedCommand, kind: MessageKind = MessageKind.COMMAND) -> bytes:
        return self.bob.signer.sign(spoken.to_payload(), kind)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def heard(site: Site, work: Callable[[], object]) -> None:
    """Do something while the rollout listens."""

    async def both() -> None:
        hearing = asyncio.create_task(site.read(site.take))
        await asyncio.sleep(1)
        done = work()
        if asyncio.iscoroutine(done):
            await done
        await asyncio.sleep(1)
        hearing.cancel()

    run_simulated(both())


def test_a_command_is_accepted_and_its_sender_gets_a_reply(site: Site) -> None:
    site.happens(PAUSED)

    async def work() -> None:
        await site.say(site.alice, RolloutCommand.CONTINUE, site.head())
        await site.say(
            site.bob, RolloutCommand.APPROVE, site.head(), "n01.example.com 1d899382700659a1"
        )
        site.refusal = "is not paused"
        with pytest.raises(InvalidInputError, match=f"{ID}: is not paused"):
            await site.say(site.bob, RolloutCommand.CONTINUE, site.head())

    heard(site, work)
    assert site.taken == [
        SentCommand(command=RolloutCommand.CONTINUE, caller="choria=alice", machine="laptop"),
        SentCommand(
            command=RolloutCommand.APPROVE,
            caller="choria=bob",
            machine="laptop",
            about="n01.example.com 1d899382700659a1",
        ),
        SentCommand(command=RolloutCommand.CONTINUE, caller="choria=bob", machine="laptop"),
    ]


def test_a_sender_without_the_right_gets_the_policy_line(site: Site) -> None:
    async def work() -> None:
        with pytest.raises(InvalidInputError, match="denied by policy line 1: carol"):
            await site.say(site.carol, RolloutCommand.STOP, site.head())

    heard(site, work)
    assert site.taken == []


def test_a_command_is_bound_to_the_checkpoint_that_its_sender_knew(site: Site) -> None:
    """Not for another epoch, nor for another history."""
    site.happens(PAUSED)
    before = site.head()
    other = replace(before.head, events=before.head.events[1:])

    async def work() -> None:
        for to, reason in (
            (site.head(epoch=2), "is for epoch 2, this is 1"),
            (replace(before, head=other), "continued in another way than the sender knows"),
        ):
            with pytest.raises(InvalidInputError, match=reason):
                await site.say(site.bob, RolloutCommand.STOP, to)
        site.happens(PAUSED)
        await site.say(site.bob, RolloutCommand.STOP, before)
        site.happens(RolloutResumed(epoch=2))
        with pytest.raises(InvalidInputError, match="is for epoch 1, this is 2"):
            await site.say(site.bob, RolloutCommand.STOP, before)

    heard(site, work)
    assert [one.command for one in site.taken] == [RolloutCommand.STOP]


def test_a_repeated_command_is_accepted_once(site: Site) -> None:
    def work() -> None:
        for number in range(3):
            site.put(site.signed(site.spoken()), str(number))

    heard(site, work)
    assert len(site.taken) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"caller": SignerName("carol")},
        {"caller": ALICE},
        {"receiver": SignerName("carol")},
        {"owner": SignerName("bob")},
        {"rollout": RolloutId("20261122T110000Z-ffff")},
    ],
)
def test_commands_of_other_signers_or_for_other_rollouts_are_ignored(
    site: Site, changes: dict[str, object]
) -> None:
    heard(site, lambda: site.put(site.signed(site.spoken(**changes))))
    assert site.taken == []
    assert not [key for key in site.store.kept if "/replies/" in key]


def test_old_commands_and_invalid_messages_are_ignored(site: Site) -> None:
    def work() -> None:
        now = int(site.clock.now().timestamp())
        site.put(site.signed(site.spoken(iat=now - 100, exp=now - 40)), "1")
        site.put(site.signed(site.spoken(exp=now + 4000)), "2")
        site.put(site.signed(site.spoken(), MessageKind.REQUEST), "3")
        site.put(b"x", "4")
        site.put(site.bob.signer.sign(b'{"iss": "choria=bob"}', MessageKind.COMMAND), "5")
        site.put(person("mallory").signer.sign(b"{}", MessageKind.COMMAND), "6")

    heard(site, work)
    assert site.taken == []


def test_a_sender_of_too_many_commands_does_not_block_others(site: Site) -> None:
    async def work() -> None:
        for number in range(30):
            jti = f"3f2504e0-4f89-41d3-9a0c-{number:012x}"
            site.put(site.signed(site.spoken(jti=jti)), str(number))
        await asyncio.sleep(1)
        await site.say(site.alice, RolloutCommand.STOP, site.head())

    heard(site, work)
    by_bob = [one for one in site.taken if one.caller == "choria=bob"]
    assert (len(by_bob), len(site.taken)) == (WORDS.each, 21)


def test_a_missing_reply_is_an_error(site: Site) -> None:
    async def work() -> None:
        with pytest.raises(UnavailableError, match="its controller did not reply"):
            await site.say(site.bob, RolloutCommand.STOP, site.head())

    run_simulated(work())


def test_a_controller_receives_commands_again_after_an_outage(site: Site) -> None:
    async def work() -> None:
        site.store.away = True
        site.store.wake()
        await asyncio.sleep(60)
        site.store.away = False
        await asyncio.sleep(60)
        await site.say(site.bob, RolloutCommand.STOP, site.head())

    heard(site, work)
    assert len(site.taken) == 1


class Answerless(MemoryKeyValue):
    """A store that refuses all replies to Bob."""

    async def _write(
        self, key: str, value: bytes, ttl: float | None, expected: int | None
    ) -> int | None:
        if key.startswith(layout.replies_to("bob")):
            raise RefusedError("not allowed", where="bus")
        return await super()._write(key, value, ttl, expected)


def test_a_sender_that_cannot_get_a_reply_does_not_block_others(site: Site) -> None:
    """A roster lets an admin send every command, and no member may reply to an admin."""
    site.read = site.hearing(Answerless(site.store)).read

    async def work() -> None:
        with pytest.raises(UnavailableError, match="its controller did not reply"):
            await site.say(site.bob, RolloutCommand.STOP, site.head())
        await site.say(site.alice, RolloutCommand.STOP, site.head())

    heard(site, work)
    assert [one.caller for one in site.taken] == ["choria=bob", "choria=alice"]


def test_a_command_of_a_later_version_does_not_end_the_rollout(site: Site) -> None:
    site.read = partial(read_commands, site.journal, machine="pc")

    def work() -> None:
        site.journal.say("faster", "choria=bob")
        site.journal.say(RolloutCommand.STOP, "choria=bob")

    heard(site, work)
    assert site.taken == [
        SentCommand(command=RolloutCommand.STOP, caller="choria=bob", machine="pc")
    ]
