"""Which checkpoints of other people or strangers count, and what needs no checkpoint."""

from dataclasses import replace
from pathlib import Path

import pytest

from localpuppet.base.errors import IntegrityError, InvalidInputError
from localpuppet.fleet.trust.signing import MessageKind
from localpuppet.rollout.checkpoints import RolloutCheckpoint
from localpuppet.rollout.commands import RolloutCommand, look
from localpuppet.rollout.events import (
    ChecksEnded,
    Event,
    NodeResult,
    NodeRun,
    NodeRunEnded,
    NodeRunsStarted,
    RolloutResumed,
)
from localpuppet.rollout.resuming import BLIND
from tests.rollout.checkpoint_site import AT, FIRST, KEY, STARTED, Site, head
from tests.rollout.simulated import ID, node


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def test_a_person_who_took_over_does_not_choose_the_commands_of_the_caller(
    site: Site,
) -> None:
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


async def test_a_large_epoch_of_a_takeover_does_not_stop_the_caller_from_resuming(
    site: Site,
) -> None:
    site.begin(STARTED)
    site.may = {"bob"}
    written = head(RolloutResumed(epoch=2**70), epoch=2**70)
    site.store.write(KEY, site.bob.signer.sign(written.to_payload(), MessageKind.CHECKPOINT), None)
    assert (await site.take_up(site.here, ID)).epoch == 1 + BLIND + 1


@pytest.mark.parametrize("by_bob", [True, False])
async def test_an_overwritten_checkpoint_does_not_stop_the_caller_from_resuming(
    site: Site, by_bob: bool
) -> None:
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


async def test_commands_that_need_events_are_refused_for_a_checkpoint_without_events(
    site: Site,
) -> None:
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
        NodeRunEnded(node_run=NodeRun(7, node(1)), result=NodeResult.FAILED),
        NodeRunsStarted(node_runs=(NodeRun(0, node(1)),)),
        NodeRunsStarted(node_runs=(NodeRun(1, node(9)),)),
    ],
)
async def test_a_checkpoint_with_foreign_nodes_does_not_enter_the_journal(
    site: Site, forged: Event
) -> None:
    """Otherwise each later command on that machine would end with a stack trace."""
    site.begin(STARTED)
    site.may = {"bob"}
    await site.heads_of(site.bob).write(head(RolloutResumed(epoch=2), forged, epoch=2), None)
    assert (await site.take_up(site.here, ID)).epoch == 1 + BLIND + 1
    assert "the checkpoint is not trusted" in site.notes[0]
    assert site.here.open(ID).state().started == {NodeRun(1, node(1))}
