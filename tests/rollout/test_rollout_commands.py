"""Rollout commands: what they result in, by the journal of this machine, and over a bus."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.formats.names import RolloutId, SignerName
from localpuppet.base.formats.times import parse_time
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
    identify_pause,
    meaning,
    read_commands,
    refusal,
    send_here,
    send_over_bus,
)
from localpuppet.rollout.events import Event, RolloutEnding, RolloutPaused, RolloutResumed
from localpuppet.rollout.journal import Journals, JournalWriter
from localpuppet.rollout.rollout_options import OnFailure
from localpuppet.rollout.state import RolloutState
from tests.doubles.identities import Person, person, verifier
from tests.doubles.memory_store import MemoryKeyValue, MemoryStore
from tests.doubles.ports import FakeClock
from tests.doubles.simulated_loop import run_simulated
from tests.rollout.make import (
    AT,
    ID,
    RELEASE,
    Notes,
    SimulatedNodes,
    began,
    begun,
    node,
    rollout_over,
    rollout_stopped,
    words,
)

pytestmark = pytest.mark.simulated
PAUSED = RolloutPaused(reason="1 node failed")


def said(command: RolloutCommand, about: str = "") -> SentCommand:
    return SentCommand(command=command, caller="choria=bob", machine="laptop", about=about)


GOES_ON = meaning(said(RolloutCommand.CONTINUE), RolloutState(began([1])))


@pytest.mark.parametrize(
    ("command", "events", "reason"),
    [
        (RolloutCommand.STOP, [], ""),
        (RolloutCommand.CONTINUE, [], "is not paused"),
        (RolloutCommand.CONTINUE, [PAUSED, GOES_ON], "is not paused"),
        (RolloutCommand.PAUSE, [], ""),
        (RolloutCommand.PAUSE, [PAUSED], "is already paused: 1 node failed"),
        (RolloutCommand.APPROVE, [PAUSED], "the approval names no node"),
        (RolloutCommand.ROLLBACK, [PAUSED], "delivers no release"),
        (RolloutCommand.STOP, [rollout_stopped(RolloutEnding.FAILED, "x")], "is already ending: x"),
        (RolloutCommand.STOP, [rollout_over()], "is over: done"),
    ],
)
def test_a_command_may_be_late(command: RolloutCommand, events: list[Event], reason: str) -> None:
    found = refusal(said(command), RolloutState.of([began([1]), *events]))
    assert found.startswith(reason) if reason else not found


def test_continue_ends_the_pause_that_its_sender_saw_and_no_other() -> None:
    """A later pause is another one, also if its reason is the same."""
    once = RolloutState.of([began([1]), PAUSED])
    seen = said(RolloutCommand.CONTINUE, identify_pause(once))
    assert refusal(seen, once) == ""
    for other in (PAUSED, RolloutPaused(reason="2 nodes failed")):
        later = RolloutState.of([began([1]), PAUSED, GOES_ON, other])
        assert refusal(seen, later).startswith("paused again since then")
        assert refusal(said(RolloutCommand.CONTINUE), later).startswith("paused again since then")
        assert refusal(said(RolloutCommand.CONTINUE, identify_pause(later)), later) == ""


@pytest.mark.parametrize("paused", [True, False])
async def test_a_rollback_command_rolls_back_the_nodes_with_the_release(paused: bool) -> None:
    """Also if the options do not roll back on failures; a later command is rejected."""
    first = began(
        [1, 2], [3], [4], delivery=RELEASE, on_failure=OnFailure.PAUSE if paused else OnFailure.STOP
    )

    bad = {node(3)} if paused else set()
    notes, nodes = Notes(), SimulatedNodes(bad=bad, back=4, seconds={node(3): 100})
    rollout, doing = await begun(first, nodes, notes, after=200 if paused else 50)
    assert rollout.state.waits is paused
    notes.words += [
        (RolloutCommand.ROLLBACK, "choria=bob"),
        (RolloutCommand.CONTINUE, "choria=carol"),
    ]
    over = await doing
    assert (over.ending, over.reason) == (
        RolloutEnding.ROLLED_BACK,
        "rolled back by choria=bob on pc",
    )
    assert words(rollout.state) == ["rolled back"] * 3 + ["not reached"]
    assert notes.refused[0] == ""
    assert notes.refused[1].startswith("is already ending")
    assert (nodes.held, rollout.state.resumable) == (set(), False)


ABOUT = identify_pause(RolloutState.of([began([1], [2]), PAUSED]))

GO_ON = SentCommand(
    command=RolloutCommand.CONTINUE, caller="choria=alice", machine="pc", about=ABOUT
)

HEARD = meaning(GO_ON, RolloutState(began([1])))
STOPPED = rollout_stopped(RolloutEnding.STOPPED, "stopped by choria=bob on laptop")


@pytest.fixture
def journal(tmp_path: Path) -> JournalWriter:
    """Return the journal of a rollout that waits in this process."""
    found = Journals(tmp_path).begin(began([1], [2]), at=AT)
    found.append(PAUSED, at=AT)
    return found


def said_while(journal: JournalWriter, later: Callable[[], None]) -> None:
    """Send a command, while something happens a second later."""

    async def work() -> None:
        saying = asyncio.create_task(send_here(journal, GO_ON))
        await asyncio.sleep(1)
        assert not saying.done()
        assert [one[1:] for one in journal.commands_after(0)] == [
            (RolloutCommand.CONTINUE, "choria=alice", ABOUT)
        ]
        later()
        await saying

    run_simulated(work())


def test_a_command_is_done_when_the_journal_has_it(journal: JournalWriter) -> None:
    def more() -> None:
        journal.append(HEARD, rollout_over(), at=AT)
        journal.close()

    said_while(journal, more)


async def test_a_pause_is_recorded_with_the_time_that_the_controller_adds(tmp_path: Path) -> None:
    journal = Journals(tmp_path).begin(began([1], [2]), at=AT)
    pause = SentCommand(command=RolloutCommand.PAUSE, caller="choria=alice", machine="pc")
    paused = meaning(pause, RolloutState(began([1])))
    assert isinstance(paused, RolloutPaused)

    saying = asyncio.create_task(send_here(journal, pause))
    await asyncio.sleep(1)
    journal.append(replace(paused, since=parse_time(AT)), at=AT)
    await saying


@pytest.mark.parametrize(
    ("event", "problem"), [(STOPPED, "is already ending"), (HEARD, "")], ids=["other", "own"]
)
def test_a_person_whose_command_comes_too_late_learns_who_decided(
    journal: JournalWriter, event: Event, problem: str
) -> None:
    def decided() -> None:
        journal.append(event, at=AT)

    if problem:
        with pytest.raises(InvalidInputError, match=problem):
            said_while(journal, decided)
    else:
        said_while(journal, decided)


def test_a_controller_that_does_not_receive_a_command_is_an_error(journal: JournalWriter) -> None:
    with pytest.raises(UnavailableError, match="did not receive the command within 60 s"):
        said_while(journal, lambda: None)
    with pytest.raises(
        UnavailableError, match=f"ended before it received the command.*resume {ID}"
    ):
        run_simulated(left(journal))
    run_simulated(refused(journal))


async def left(journal: JournalWriter) -> None:
    journal.forget_commands()
    journal.close()
    await send_here(journal, GO_ON)


async def refused(journal: JournalWriter) -> None:
    journal.append(STOPPED, at=AT)
    with pytest.raises(InvalidInputError, match="is already ending"):
        await send_here(journal, GO_ON)


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
