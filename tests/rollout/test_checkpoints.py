"""Checkpoints on a bus: their bounds, their owner, resuming and taking over from them."""

import asyncio
import os
import zlib
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
from localpuppet.rollout.commands import RolloutCommand, look
from localpuppet.rollout.events import (
    Event,
    NodeRun,
    NodeRunsStarted,
    RolloutEnded,
    RolloutEnding,
    RolloutResumed,
    RolloutStopped,
)
from localpuppet.rollout.journal import Journals
from localpuppet.rollout.resuming import head_of
from tests.doubles.simulated_loop import run_simulated
from tests.rollout.checkpoint_site import (
    AT,
    CALLER,
    FIRST,
    KEY,
    STARTED,
    Site,
    head,
    kept,
)
from tests.rollout.simulated import ID, node


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_checkpoint_is_encoded_parsed_and_bounded() -> None:
    whole = head(STARTED, RolloutResumed(epoch=4), epoch=4)
    assert RolloutCheckpoint.parse(whole.to_payload(), caller=CALLER) == whole
    for why in (os.urandom(MAX_PACKED_CHECKPOINT).hex(), " " * MAX_CHECKPOINT):
        large = head(RolloutStopped(ending=RolloutEnding.STOPPED, reason=why), epoch=4)
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
    token = site.alice.signer.sign(other.to_payload(), MessageKind.CHECKPOINT)
    site.store.write(KEY, token, None)
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
    stopped = RolloutEnded(ending=RolloutEnding.STOPPED, reason="stopped", still_held={})
    revision = await site.heads.write(head(STARTED, stopped), None)
    for command in RolloutCommand:
        with pytest.raises(InvalidInputError, match=f"{ID}: is over: stopped"):
            await look(site.heads, None, command)
    resumed = kept(head(STARTED, stopped, epoch=2), revision + 1)
    await site.heads.write(resumed.head, revision)
    assert (await look(site.heads, None, RolloutCommand.STOP)).head == resumed.head


async def test_an_overtaken_machine_resumes_from_the_checkpoint_of_the_other(site: Site) -> None:
    site.begin(STARTED)
    later = (RolloutResumed(epoch=2), NodeRunsStarted(node_runs=(NodeRun(1, node(2)),)))
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
        (head(RolloutEnded(ending=RolloutEnding.DONE, reason="", still_held={})), "is over: done"),
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


async def shown(site: Site) -> RolloutCheckpoint | None:
    found = await site.heads.read(ID)
    return None if found is None else found.head


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


def test_a_checkpoint_follows_its_journal_over_outages(site: Site) -> None:
    events: list[Event] = []

    async def work() -> None:
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
        assert await shown(site) == head(STARTED)
        # The reply was lost: the key has another revision than the keeper knows.
        site.store.write(
            KEY, site.alice.signer.sign(head().to_payload(), MessageKind.CHECKPOINT), None
        )
        ours.changed()
        await asyncio.sleep(60)
        assert await shown(site) == head(STARTED)
        keeping.cancel()

    run_simulated(work())


def test_an_overtaken_controller_learns_of_it_and_ends(site: Site) -> None:
    async def work() -> None:
        ours = keeper(site, head)
        await ours.write()
        found = await site.heads.read(ID)
        assert found is not None
        await site.heads.write(head(epoch=2), found.revision)
        ours.changed()
        with pytest.raises(BusyError, match=r"was resumed elsewhere \(epoch 2, this is 1\)"):
            await ours.run()
        assert await shown(site) == head(epoch=2)

    run_simulated(work())


def test_a_controller_without_the_right_to_write_checkpoints_warns_once(site: Site) -> None:
    site.kv.problem = RefusedError("not allowed", where="bus")
    ours = keeper(site, head)
    ours.changed()
    run_simulated(ours.run())
    assert site.notes == ["warning: only this machine can resume the rollout: bus: not allowed"]


def test_a_foreign_value_at_its_key_ends_checkpoints_and_not_the_rollout(site: Site) -> None:
    async def work() -> None:
        ours = keeper(site, head)
        await ours.write()
        site.store.write(KEY, b"something", None)
        ours.changed()
        await ours.run()
        assert "only this machine can resume the rollout" in site.notes[0]

    run_simulated(work())


def test_a_journal_has_a_checkpoint_as_long_as_it_can_be_resumed(site: Site) -> None:
    site.begin(STARTED)
    journal = site.here.take(ID)
    assert head_of(journal) == head(STARTED)
    journal.append(RolloutEnded(ending=RolloutEnding.STOPPED, reason="", still_held={}), at=AT)
    assert not head_of(journal).over
    journal.append(RolloutResumed(epoch=5), at=AT)
    journal.append(RolloutEnded(ending=RolloutEnding.FAILED, reason="", still_held={}), at=AT)
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


async def test_another_person_takes_a_rollout_over_and_its_caller_resumes_it_later(
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
    found = await site.heads.read(ID)
    assert found is not None
    assert found.signer == "alice"


async def test_of_two_people_who_take_a_rollout_over_only_the_first_succeeds(site: Site) -> None:
    await site.heads.write(head(STARTED), None)
    bobs, carols = site.heads_of(site.bob), site.heads_of(site.carol)
    first, second = await bobs.read(ID), await carols.read(ID)
    assert first is not None
    assert second is not None
    await bobs.write(head(STARTED, epoch=2), first.revision)
    with pytest.raises(BusyError, match="another process controls"):
        await carols.write(head(STARTED, epoch=2), second.revision)


async def test_a_takeover_that_nodes_refuse_changes_nothing(site: Site) -> None:
    await site.heads.write(head(STARTED), None)
    site.refusal = "n01.example.com: denied by policy line 1"
    with pytest.raises(InvalidInputError, match="cannot be taken over, and nothing was changed"):
        await site.take_up(site.there, ID, site.bob)
    assert not site.there.ids()
    assert await shown(site) == head(STARTED)


async def test_a_person_without_the_right_to_write_checkpoints_takes_nothing_over(
    site: Site,
) -> None:
    await site.heads.write(head(STARTED), None)
    site.kv.problem = RefusedError("not allowed", where="bus")
    with pytest.raises(RefusedError):
        await site.take_up(site.there, ID, site.bob)


def test_a_slow_controller_ends_only_for_a_takeover_that_its_policy_allows(
    site: Site,
) -> None:
    async def work() -> None:
        ours = keeper(site, head)
        assert not await ours.is_ours(), "the bus has no checkpoint yet"
        await ours.write()
        assert await ours.is_ours()
        found = await site.heads_of(site.bob).read(ID)
        assert found is not None
        await site.heads_of(site.bob).write(head(epoch=2), found.revision)
        ours.changed()
        await ours.run()
        assert "was signed by bob" in site.notes[0]
        assert not await ours.is_ours()
        site.may = {"bob"}
        ours.changed()
        with pytest.raises(BusyError, match="was resumed elsewhere"):
            await ours.run()

    run_simulated(work())
