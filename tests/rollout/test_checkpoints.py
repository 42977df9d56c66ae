"""Checkpoints: their form, their bounds on a bus, resuming and taking over from them."""

import asyncio
import json
import os
import re
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import BusyError, IntegrityError, InvalidInputError, UnavailableError
from localpuppet.base.formats.names import RolloutId
from localpuppet.fleet.bus import layout
from localpuppet.fleet.bus.bus_limits import MAX_CHECKPOINT, MAX_PACKED_CHECKPOINT
from localpuppet.fleet.bus.key_value import RefusedError
from localpuppet.fleet.trust.signing import MessageKind
from localpuppet.rollout.checkpoints import CheckpointKeeper, RolloutCheckpoint, Summary
from localpuppet.rollout.commands import RolloutCommand, SignedCommand, look
from localpuppet.rollout.events import (
    ChecksEnded,
    Event,
    NodeResult,
    NodeRun,
    RolloutEnding,
    RolloutResumed,
)
from localpuppet.rollout.journal import Journals
from localpuppet.rollout.resuming import BLIND, head_of
from tests.doubles.simulated_loop import run_simulated
from tests.rollout.make import (
    AT,
    CALLER,
    FIRST,
    ID,
    KEY,
    STARTED,
    Site,
    began,
    head,
    kept,
    node,
    rollout_over,
    rollout_stopped,
    run_ended,
    runs_started,
)

pytestmark = pytest.mark.simulated


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_checkpoint_is_encoded_parsed_and_bounded() -> None:
    whole = head(STARTED, RolloutResumed(epoch=4), epoch=4)
    assert RolloutCheckpoint.parse(whole.to_payload(), caller=CALLER) == whole
    for why in (os.urandom(MAX_PACKED_CHECKPOINT).hex(), " " * MAX_CHECKPOINT):
        large = head(rollout_stopped(RolloutEnding.STOPPED, why), epoch=4)
        small = RolloutCheckpoint.parse(large.to_payload(), caller=CALLER)
        assert (small.epoch, small.events) == (4, ())
    with pytest.raises(InvalidInputError, match="not one whole zlib stream, or too large"):
        RolloutCheckpoint.parse(zlib.compress(b" " * (MAX_CHECKPOINT + 1)), caller=CALLER)
    with pytest.raises(InvalidInputError, match="is larger than"):
        RolloutCheckpoint.parse(bytes(MAX_PACKED_CHECKPOINT + 1), caller=CALLER)


@pytest.mark.parametrize("payload", [b"", b"x", b"{}", head().to_payload() + b"x"])
def test_an_invalid_checkpoint_is_refused(payload: bytes) -> None:
    with pytest.raises(InvalidInputError, match="rollout checkpoint"):
        RolloutCheckpoint.parse(payload, caller=CALLER)
    with pytest.raises(InvalidInputError, match="not of a rollout of choria=bob"):
        RolloutCheckpoint.parse(head().to_payload(), caller="choria=bob")


async def test_a_checkpoint_must_be_signed_by_its_caller(site: Site) -> None:
    assert await site.heads.read(ID) is None
    revision = await site.heads.write(head(), None)
    assert await site.heads.read(ID) == kept(head(), revision)
    assert await site.heads.newest() == kept(head(), revision)
    for who, kind, what in (
        (site.bob, MessageKind.CHECKPOINT, "was signed by bob, not by alice"),
        (site.alice, MessageKind.REQUEST, "typ"),
    ):
        site.store.write(KEY, who.signer.sign(head().to_payload(), kind), None)
        with pytest.raises(IntegrityError, match=what):
            await site.heads.read(ID)
    other = RolloutCheckpoint(rollout=RolloutId("20261122T110000Z-ffff"), epoch=1, events=())
    site.forge(site.alice, other)
    with pytest.raises(IntegrityError, match="is the checkpoint of rollout 20261122T110000Z-ffff"):
        await site.heads.read(ID)


async def test_another_machine_resumes_from_the_checkpoint_on_the_bus(site: Site) -> None:
    site.begin(STARTED)
    await site.heads.write(head(STARTED), None)
    taken = await site.take_up(site.there, None)
    assert (taken.epoch, taken.journal.path.parent.name) == (2, "there")
    assert site.there.open(ID).state().started == {NodeRun(1, node(1))}
    claimed = await site.heads.read(ID)
    assert taken.revision is not None
    assert claimed == kept(head(STARTED, epoch=2), taken.revision)
    # On the first machine the journal has more than the bus; it takes the epoch after that.
    again = await site.take_up(site.here)
    assert again.epoch == 3


async def test_checkpoints_of_others_do_not_hide_the_newest(site: Site) -> None:
    revision = await site.heads.write(head(), None)
    over = RolloutId("20261123T110000Z-0a1b")
    await site.heads.write(RolloutCheckpoint(rollout=over, epoch=1, events=(), over=True), None)
    later = RolloutCheckpoint(rollout=RolloutId("20991231T110000Z-0a1b"), epoch=1, events=())
    forged = site.bob.signer.sign(later.to_payload(), MessageKind.CHECKPOINT)
    moved = site.alice.signer.sign(head().to_payload(), MessageKind.CHECKPOINT)
    for name, token in (("4Z", forged), ("3Z", moved), ("2Z", b"x"), ("1Z", b"")):
        key = KEY.replace(ID, f"20991231T11000{name}-0a1b")
        site.store.write(key, token, None)
    site.store.write(KEY.replace(ID, "zzz"), forged, None)
    assert await site.heads.newest(resumable=True) == kept(head(), revision)
    newest = await site.heads.newest()
    assert newest is not None
    assert newest.head.rollout == over


async def test_a_command_for_the_newest_rollout_never_goes_to_an_older_one(site: Site) -> None:
    """A stopped rollout can be resumed, so its checkpoint has its events and is not `over`."""
    older = RolloutId("20261101T110000Z-0a1b")
    began = replace(FIRST, id=older)
    await site.heads.write(RolloutCheckpoint(rollout=older, epoch=1, events=((AT, began),)), None)
    stopped = rollout_over(RolloutEnding.STOPPED, "stopped")
    revision = await site.heads.write(head(STARTED, stopped), None)
    for command in RolloutCommand:
        with pytest.raises(InvalidInputError, match=f"{ID}: is over: stopped"):
            await look(site.heads, None, command)
    resumed = kept(head(STARTED, stopped, epoch=2), revision + 1)
    await site.heads.write(resumed.head, revision)
    assert (await look(site.heads, None, RolloutCommand.STOP)).head == resumed.head


async def test_an_overtaken_machine_resumes_from_the_checkpoint_of_the_other(site: Site) -> None:
    site.begin(STARTED)
    later = (RolloutResumed(epoch=2), runs_started(NodeRun(1, node(2))))
    await site.heads.write(head(*later, epoch=2), None)
    assert (await site.take_up(site.here)).epoch == 3
    assert site.here.open(ID).state().started == {NodeRun(1, node(2))}


async def test_of_two_processes_that_resume_a_rollout_only_the_first_succeeds(site: Site) -> None:
    site.begin()
    revision = await site.heads.write(head(), None)
    await site.heads.write(head(epoch=2), revision)
    with pytest.raises(BusyError, match="another process controls rollout"):
        await site.heads.write(head(epoch=2), revision)
    with pytest.raises(BusyError):
        await site.heads.write(head(), None)


@pytest.mark.parametrize(
    ("there", "message"),
    [
        (None, "neither this machine nor the bus knows"),
        (
            RolloutCheckpoint(rollout=ID, epoch=3, events=()),
            "has a journal that is too large for the bus",
        ),
        (
            RolloutCheckpoint(rollout=ID, epoch=3, events=(), over=True),
            "is over: it continued elsewhere",
        ),
        (head(rollout_over()), "is over: done"),
    ],
)
async def test_the_error_says_why_a_rollout_cannot_be_resumed(
    site: Site, there: RolloutCheckpoint | None, message: str
) -> None:
    if there is not None:
        await site.heads.write(there, None)
    with pytest.raises(InvalidInputError, match=message):
        await site.take_up(site.there)


async def test_without_rights_on_the_bus_only_its_own_machine_resumes_a_rollout(site: Site) -> None:
    site.begin(STARTED)
    site.kv.problem = RefusedError("not allowed", where="bus")
    taken = await site.take_up(site.here, None)
    assert (taken.epoch, taken.revision) == (2, None)
    assert "cannot tell whether it was resumed elsewhere" in site.notes[0]
    site.kv.problem = UnavailableError("away", where="bus")
    with pytest.raises(UnavailableError):
        await site.take_up(site.here)


def keeper(site: Site, current: Any, revision: int | None = None) -> CheckpointKeeper:
    return CheckpointKeeper(
        site.heads, ID, current=current, revision=revision, note=site.notes.append
    )


def test_a_rollout_says_once_that_the_bus_is_full(site: Site) -> None:
    """Also while it writes nothing itself: the nodes cannot publish their results then."""

    async def work() -> None:
        keeping = asyncio.create_task(keeper(site, head).run())
        await asyncio.sleep(60)
        for _ in range(2):
            site.store.full = True
            await asyncio.sleep(60)
            site.store.full = False
            await asyncio.sleep(60)
        keeping.cancel()

    run_simulated(work())
    full = "cannot write to the bus; trying again: the memory is full"
    assert site.notes == [full, "the bus accepts values again; the rollout continues"] * 2


async def test_a_checkpoint_follows_its_journal_over_outages(site: Site) -> None:
    events: list[Event] = []

    ours = keeper(site, lambda: head(*events))
    keeping = asyncio.create_task(ours.run())
    ours.changed()
    await asyncio.sleep(5)
    site.kv.problem = UnavailableError("away", where="bus")
    events.append(STARTED)
    ours.changed()
    await asyncio.sleep(60)
    site.kv.problem = None
    await asyncio.sleep(60)
    assert (await site.published()).head == head(STARTED)
    # The reply was lost: the key has another revision than the keeper knows.
    site.forge(site.alice, head())
    ours.changed()
    await asyncio.sleep(60)
    assert (await site.published()).head == head(STARTED)
    keeping.cancel()


async def test_an_overtaken_controller_learns_of_it_and_ends(site: Site) -> None:
    ours = keeper(site, head)
    await ours.write()
    await site.heads.write(head(epoch=2), (await site.published()).revision)
    ours.changed()
    with pytest.raises(BusyError, match=r"was resumed elsewhere \(epoch 2, this is 1\)"):
        await ours.run()
    assert (await site.published()).head == head(epoch=2)


def test_a_controller_without_the_right_to_write_checkpoints_warns_once(site: Site) -> None:
    site.kv.problem = RefusedError("not allowed", where="bus")
    ours = keeper(site, head)
    ours.changed()
    run_simulated(ours.run())
    assert site.notes == ["warning: only this machine can resume the rollout: bus: not allowed"]


async def test_a_foreign_value_at_its_key_ends_checkpoints_and_not_the_rollout(site: Site) -> None:
    ours = keeper(site, head)
    await ours.write()
    site.store.write(KEY, b"something", None)
    ours.changed()
    await ours.run()
    assert "only this machine can resume the rollout" in site.notes[0]


def test_a_journal_has_a_checkpoint_as_long_as_it_can_be_resumed(site: Site) -> None:
    site.begin(STARTED)
    journal = site.here.take(ID)
    assert head_of(journal) == head(STARTED)
    journal.append(rollout_over(RolloutEnding.STOPPED), at=AT)
    assert not head_of(journal).over
    journal.append(RolloutResumed(epoch=5), at=AT)
    journal.append(rollout_over(RolloutEnding.FAILED), at=AT)
    summary = Summary(
        title="test",
        ending=RolloutEnding.FAILED,
        reason="",
        started_at=AT,
        finished_at=AT,
        noop=False,
        counts={"failed": 1, "not reached": 2},
        release="",
    )
    ended = RolloutCheckpoint(rollout=ID, epoch=5, events=(), over=True, summary=summary)
    assert head_of(journal) == RolloutCheckpoint.parse(ended.to_payload(), caller=CALLER) == ended
    journal.close()
    assert layout.rollouts_of("alice") + ID == KEY


async def test_another_person_takes_over_and_the_caller_resumes_it(
    site: Site, tmp_path: Path
) -> None:
    """If a policy does not let Bob take over, a checkpoint that Bob signed is rejected."""
    site.begin(STARTED)
    await site.heads.write(head(STARTED), None)
    taken = await site.take_up(site.there, None, site.bob)
    assert (taken.epoch, site.asked[0].started) == (2, {NodeRun(1, node(1))})
    assert site.there.open(ID).state().began.caller == CALLER
    elsewhere = Journals(tmp_path / "elsewhere")
    with pytest.raises(IntegrityError, match=r"signed by bob, not by alice \(denied by policy"):
        await site.take_up(elsewhere)
    site.may = {"bob"}
    assert (await site.take_up(site.here)).epoch == 3
    assert (await site.published()).signer == "alice"


async def test_a_takeover_that_nodes_refuse_changes_nothing(site: Site) -> None:
    await site.heads.write(head(STARTED), None)
    site.refusal = "n01.example.com: denied by policy line 1"
    with pytest.raises(InvalidInputError, match="cannot be taken over, and nothing was changed"):
        await site.take_up(site.there, ID, site.bob)
    assert not site.there.ids()
    assert (await site.published()).head == head(STARTED)


async def test_a_person_who_may_not_write_checkpoints_takes_nothing_over(site: Site) -> None:
    await site.heads.write(head(STARTED), None)
    site.kv.problem = RefusedError("not allowed", where="bus")
    with pytest.raises(RefusedError):
        await site.take_up(site.there, ID, site.bob)


async def test_a_slow_controller_ends_only_for_a_takeover_its_policy_allows(site: Site) -> None:
    ours = keeper(site, head)
    assert not await ours.is_ours(), "the bus has no checkpoint yet"
    await ours.write()
    assert await ours.is_ours()
    site.forge(site.bob, head())
    site.may = {"bob"}
    assert not await ours.is_ours(), "it has the same epoch and another signer"
    site.forge(site.alice, head())
    site.may = set()
    found = await site.published(site.bob)
    await site.heads_of(site.bob).write(head(epoch=2), found.revision)
    ours.changed()
    await ours.run()
    assert "was signed by bob" in site.notes[0]
    assert not await ours.is_ours()
    site.may = {"bob"}
    ours.changed()
    with pytest.raises(BusyError, match="was resumed elsewhere"):
        await ours.run()


TWO_GROUPS = began([1], [2])


@pytest.mark.parametrize(
    "lie",
    [
        {"counts": {"done": -1}},
        {"counts": {"done": True}},
        {"counts": {"<script>": 1}},
        {"counts": [["succeeded", 1]]},
        {"ending": "well"},
        {"finished_at": "yesterday"},
        {"started_at": "0001-01-01T00:00:00+14:00"},
        {"noop": 1},
        {"title": 7},
    ],
)
def test_a_summary_is_accepted_only_in_its_form(lie: dict[str, object]) -> None:
    raw = {"title": "t" * 999, "ending": "done", "reason": "a\nb", "started_at": AT}
    told = {**raw, "finished_at": AT, "noop": False, "counts": {"done": 3}, "release": ""}
    whole = {"schema": 1, "rollout": ID, "epoch": 1, "over": True, "events": [], "summary": told}

    def parsed(payload: dict[str, object]) -> Summary | None:
        data = zlib.compress(json.dumps(payload).encode())
        return RolloutCheckpoint.parse(data, caller=CALLER).summary

    summary = parsed(whole)
    assert summary is not None
    assert (len(summary.title), "\n" in summary.reason, summary.succeeded) == (200, False, True)
    assert parsed({**whole, "summary": None}) is None
    for contradiction in ({"summary": {**told, **lie}}, {"over": False}, {"over": "no"}):
        with pytest.raises(InvalidInputError, match="rollout checkpoint: is malformed"):
            parsed({**whole, **contradiction})


def parsed(*events: tuple[str, Event], epoch: int = 1) -> RolloutCheckpoint:
    """Return a checkpoint of two groups as a reader of the bus gets it."""
    told = RolloutCheckpoint(rollout=ID, epoch=epoch, events=((AT, TWO_GROUPS), *events))
    return RolloutCheckpoint.parse(told.to_payload(), caller=CALLER)


@pytest.mark.parametrize(
    ("at", "event"),
    [
        ("yesterday", runs_started(NodeRun(1, node(1)))),
        ("9999-12-31T23:59:59-14:00", runs_started(NodeRun(1, node(1)))),
        (AT, runs_started(NodeRun(1, node(7)))),
    ],
)
def test_a_checkpoint_with_impossible_events_is_rejected(at: str, event: Event) -> None:
    assert parsed().events == ((AT, TWO_GROUPS),)
    with pytest.raises(InvalidInputError, match="rollout checkpoint: is malformed"):
        parsed((at, event))


@pytest.mark.parametrize(("epoch", "resumed"), [(0, 1), (-1, 1), (2**70, 1), (100_000, 1), (2, 3)])
def test_a_checkpoint_with_an_epoch_that_nodes_refuse_is_rejected(epoch: int, resumed: int) -> None:
    """Its caller would resume in the next epoch, which all nodes refuse for ever."""
    assert parsed((AT, RolloutResumed(epoch=3)), epoch=3).epoch == 3
    with pytest.raises(InvalidInputError, match="rollout checkpoint: is malformed"):
        parsed((AT, RolloutResumed(epoch=resumed)), epoch=epoch)


def test_a_number_that_has_no_value_is_no_epoch() -> None:
    raw = zlib.decompress(head(RolloutResumed(epoch=2)).to_payload())
    (hostile,) = {re.sub(rb'"epoch": ?2', b'"epoch": 1e999', raw)} - {raw}
    with pytest.raises(InvalidInputError, match="rollout checkpoint: is malformed"):
        RolloutCheckpoint.parse(zlib.compress(hostile), caller=CALLER)


async def test_a_person_who_took_over_does_not_choose_commands_of_the_caller(site: Site) -> None:
    """The right to resume in Alice's name does not let Bob choose her commands or her release."""
    site.begin(STARTED)
    site.may = {"bob"}
    evil = replace(FIRST, options=replace(FIRST.options, checks=(("/bin/evil",),)))
    events = ((AT, evil), (AT, RolloutResumed(epoch=2)))
    bobs = site.heads_of(site.bob)
    await bobs.write(RolloutCheckpoint(rollout=ID, epoch=2, events=events), None)
    with pytest.raises(IntegrityError, match="taken over by bob, and its start event differs"):
        await site.take_up(site.here)
    with pytest.raises(IntegrityError, match="its start event is unknown here"):
        await site.take_up(site.there)
    assert site.here.open(ID).state().began == FIRST
    assert not site.there.ids()
    # When Carol takes it over as well, she is asked about commands first.
    assert (await site.take_up(site.there, ID, site.carol)).epoch == 3
    assert site.asked[0].commands == ["/bin/evil"]


async def test_a_large_epoch_of_a_takeover_does_not_keep_out_the_caller(site: Site) -> None:
    site.begin(STARTED)
    site.may = {"bob"}
    written = head(RolloutResumed(epoch=2**70), epoch=2**70)
    site.forge(site.bob, written)
    assert (await site.take_up(site.here, ID)).epoch == 1 + BLIND + 1


@pytest.mark.parametrize("by_bob", [True, False])
async def test_an_overwritten_checkpoint_does_not_stop_the_caller(site: Site, by_bob: bool) -> None:
    """On a bus without permissions any member could: the nodes know whether a controller runs."""
    site.begin(STARTED)
    written = head(RolloutResumed(epoch=7), epoch=7)
    token = site.bob.signer.sign(written.to_payload(), MessageKind.CHECKPOINT) if by_bob else b"x"
    site.store.write(KEY, token, None)
    taken = await site.take_up(site.here, None)
    assert (taken.epoch, taken.revision) == (1 + BLIND + 1, None)
    assert "resuming from the local journal, because the checkpoint is not trusted" in site.notes[0]
    assert site.here.open(ID).state().began == FIRST
    entry = site.store.get(KEY)
    assert entry is not None
    assert entry.value == token, "the others see the false checkpoint, too"


async def test_commands_that_need_events_are_refused_without_events(site: Site) -> None:
    """Its checkpoint is too large for events: from another machine, only stop works."""
    await site.heads.write(RolloutCheckpoint(rollout=ID, epoch=1, events=()), None)
    for word in (RolloutCommand.CONTINUE, RolloutCommand.APPROVE):
        with pytest.raises(InvalidInputError, match=r"too large for the bus.*machine of alice"):
            await look(site.heads, ID, word)
    assert (await look(site.heads, ID, RolloutCommand.STOP)).head.events == ()


@pytest.mark.parametrize(
    "forged",
    [
        ChecksEnded(node_run=NodeRun(1, node(1)), problem="x"),
        run_ended(NodeRun(7, node(1)), NodeResult.FAILED),
        runs_started(NodeRun(0, node(1))),
        runs_started(NodeRun(1, node(9))),
    ],
)
async def test_a_checkpoint_with_foreign_nodes_is_not_taken(site: Site, forged: Event) -> None:
    """Otherwise each later command on that machine would end with a stack trace."""
    site.begin(STARTED)
    site.may = {"bob"}
    await site.heads_of(site.bob).write(head(RolloutResumed(epoch=2), forged, epoch=2), None)
    assert (await site.take_up(site.here, ID)).epoch == 1 + BLIND + 1
    assert "the checkpoint is not trusted" in site.notes[0]
    assert site.here.open(ID).state().started == {NodeRun(1, node(1))}


@pytest.mark.parametrize(
    "read",
    [
        SignedCommand.parse,
        lambda data: RolloutCheckpoint.parse(zlib.compress(data), caller="choria=alice"),
    ],
)
def test_a_message_with_another_number_is_named(read: Callable[[bytes], object]) -> None:
    for number, problem in [
        ({"schema": 2}, "has schema 2; this version reads 1"),
        ({"schema": "1"}, "has no schema number; this version reads 1"),
        ({}, "has no schema number; this version reads 1"),
    ]:
        with pytest.raises(InvalidInputError, match=problem):
            read(json.dumps(number).encode())
    with pytest.raises(InvalidInputError) as other:
        read(b'{"schema": 1}')
    assert "schema" not in str(other.value)
