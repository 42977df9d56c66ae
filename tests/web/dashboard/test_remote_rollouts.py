"""Rollouts that other machines have run or resumed, as the dashboard learns of them on the bus."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from localpuppet.base.errors import UnavailableError
from localpuppet.base.formats.names import SignerName
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.rollout.checkpoints import RolloutCheckpoint, RolloutCheckpoints, Summary
from localpuppet.rollout.events import (
    Event,
    NodeResult,
    NodeRun,
    NodeRunEnded,
    NodeRunsStarted,
    RolloutEnded,
    RolloutEnding,
    RolloutResumed,
)
from localpuppet.rollout.journal import Journals
from localpuppet.rollout.rollout_report import RolloutReport
from localpuppet.web.dashboard.memory import DashboardStore
from localpuppet.web.dashboard.reported_rollouts import RemoteRollouts
from localpuppet.web.dashboard.rollouts import KnownRollout, Rollouts
from tests.doubles.identities import Person, person, verifier
from tests.doubles.memory_store import MemoryKeyValue, MemoryStore
from tests.rollout.make import ID, began, node
from tests.web.dashboard.site import NAME, PlayedActor, Site
from tests.web.dashboard.test_action_views import token

AT = "2026-11-22T11:00:00.000000Z"
LATER = "2026-11-22T11:05:00.000000Z"
FIRST = began([1], [2])
TURN = NodeRun(1, node(1))
FAR: tuple[Event, ...] = (
    NodeRunsStarted(node_runs=(TURN,)),
    NodeRunEnded(node_run=TURN, result=NodeResult.SUCCEEDED),
)


def head(*events: Event, epoch: int = 1, over: bool = False) -> RolloutCheckpoint:
    told = [(AT, FIRST), *((LATER, event) for event in events)]
    return RolloutCheckpoint(rollout=ID, epoch=epoch, events=() if over else tuple(told), over=over)


class Bus:
    """A bus, Alice on this machine and on another, and Mallory."""

    def __init__(self, directory: Path) -> None:
        self.alice, self.mallory = person("alice"), person("mallory")
        self.verifier = verifier(directory, self.alice, self.mallory)
        self.store = MemoryStore()
        self.told = asyncio.Event()
        self.elsewhere = RemoteRollouts(lambda kv: self.heads(self.alice, kv), again=0.01)
        self.journals = Journals(directory / "rollouts")
        memory = DashboardStore(directory / "web" / "fleet.sqlite", now=lambda: 0.0)
        self.rollouts = Rollouts(self.journals, self.elsewhere, memory)

    def heads(self, who: Person, kv: KeyValue | None = None) -> RolloutCheckpoints:
        return RolloutCheckpoints(
            kv or MemoryKeyValue(self.store),
            signer=who.signer,
            verifier=self.verifier,
            denied=lambda name: f"{name} may not",
            owner=SignerName("alice"),
        )

    async def connect(self) -> KeyValue:
        if self.store.away:
            raise UnavailableError("is unreachable", where="bus")
        return MemoryKeyValue(self.store)

    async def heard(self) -> None:
        async with asyncio.timeout(60):
            await self.told.wait()
        self.told.clear()

    def begin(self, *events: Event) -> None:
        """Have a journal here that a killed process left."""
        journal = self.journals.begin(FIRST, at=AT)
        for event in events:
            journal.append(event, at=AT)
        journal.close()

    @asynccontextmanager
    async def followed(self) -> AsyncGenerator[None, None]:
        leave = asyncio.Event()
        following = asyncio.create_task(self.elsewhere.follow(self.connect, self.told.set, leave))
        await self.heard()  # how it is at first
        yield
        leave.set()
        await following


@pytest.fixture
def bus(tmp_path: Path) -> Bus:
    return Bus(tmp_path)


async def test_a_rollout_that_runs_elsewhere_is_shown_from_its_checkpoint(bus: Bus) -> None:
    async with bus.followed():
        assert bus.rollouts.rows() == []
        written = await bus.heads(bus.alice).write(head(), None)
        await bus.heard()
        written = await bus.heads(bus.alice).write(head(*FAR), written)
        await bus.heard()
        (row,) = bus.rollouts.rows()
        assert (row.id, row.state, row.counts) == (
            ID,
            "elsewhere",
            (("done", 1), ("not started", 1)),
        )
        assert f"last checkpoint at {LATER}" in row.reason
        assert bus.rollouts.report(ID).word == "elsewhere"
        await bus.heads(bus.alice).write(head(over=True), written)
        await bus.heard()
        (row,) = bus.rollouts.rows()
        assert (row.state, row.counts) == ("elsewhere", ())
        assert row.reason == "it continued on another machine, and has ended"


async def test_how_it_ended_elsewhere_is_shown_in_short(bus: Bus) -> None:
    bus.begin(NodeRunsStarted(node_runs=(TURN,)))
    over = RolloutEnded(ending=RolloutEnding.FAILED, reason="1 node failed", still_held={})
    told = [(AT, FIRST), *((LATER, event) for event in (*FAR, RolloutResumed(epoch=2), over))]
    summary = Summary.of(RolloutReport.of(told, taken=False))
    async with bus.followed():
        ended = RolloutCheckpoint(rollout=ID, epoch=2, events=(), over=True, summary=summary)
        await bus.heads(bus.alice).write(ended, None)
        await bus.heard()
        (row,) = bus.rollouts.rows()
        assert (row.state, row.caller) == ("failed", "choria=alice")
        assert row.counts == (("done", 1), ("not reached", 1))
        assert row.reason == "it ended on another machine: 1 node failed"
        assert None not in (row.started_at, row.finished_at)
        assert bus.rollouts.shown(ID) == KnownRollout(row=row)


async def test_a_rollout_that_was_stopped_elsewhere_can_be_resumed(bus: Bus) -> None:
    stopped = head(
        *FAR, RolloutEnded(ending=RolloutEnding.STOPPED, reason="stopped by bob", still_held={})
    )
    await bus.heads(bus.alice).write(stopped, None)
    async with bus.followed():
        (row,) = bus.rollouts.rows()
        assert row.reason == f"it was stopped on another machine at {LATER}, and can be resumed"


async def test_of_a_journal_and_a_checkpoint_the_newer_epoch_counts(bus: Bus) -> None:
    bus.begin(NodeRunsStarted(node_runs=(TURN,)))
    written = await bus.heads(bus.alice).write(head(*FAR), None)
    async with bus.followed():
        assert [row.state for row in bus.rollouts.rows()] == ["interrupted"]
        assert bus.rollouts.report(ID).word == "interrupted"
        await bus.heads(bus.alice).write(head(*FAR, RolloutResumed(epoch=2), epoch=2), written)
        await bus.heard()
        (row,) = bus.rollouts.rows()
        assert (row.state, row.counts) == ("elsewhere", (("done", 1), ("not started", 1)))
        assert bus.rollouts.report(ID).counts() == {"done": 1, "not started": 1}


async def test_a_rollout_that_ended_elsewhere_shows_the_progress_known_here(bus: Bus) -> None:
    bus.begin(NodeRunsStarted(node_runs=(TURN,)))
    await bus.heads(bus.alice).write(head(epoch=2, over=True), None)
    async with bus.followed():
        (row,) = bus.rollouts.rows()
        assert (row.state, row.counts) == ("elsewhere", (("running", 1), ("not started", 1)))
        assert "and has ended" in row.reason
        assert bus.rollouts.report(ID).word == "elsewhere"


async def test_checkpoints_of_others_are_ignored_and_outages_change_nothing(bus: Bus) -> None:
    async with bus.followed():
        written = await bus.heads(bus.mallory).write(head(), None)
        await bus.heard()
        assert bus.rollouts.rows() == []
        written = await bus.heads(bus.alice).write(head(), written)
        await bus.heard()
        bus.store.away = True
        await asyncio.sleep(0.05)
        assert [row.state for row in bus.rollouts.rows()] == ["elsewhere"]
        bus.store.away = False
        key = bus.heads(bus.alice).key(ID)
        await MemoryKeyValue(bus.store).remove_if_revision(key, written)
        async with asyncio.timeout(60):
            while bus.rollouts.rows():
                await bus.heard()


async def test_an_impossible_checkpoint_hides_no_rollout(bus: Bus) -> None:
    bus.begin()
    lie = head(NodeRunsStarted(node_runs=(NodeRun(1, node(9)),)), RolloutResumed(epoch=2), epoch=2)
    await bus.heads(bus.alice).write(lie, None)
    async with bus.followed():
        assert [row.state for row in bus.rollouts.rows()] == ["interrupted"]
        assert bus.rollouts.report(ID).word == "interrupted"


async def test_no_actions_are_offered_for_a_rollout_elsewhere(tmp_path: Path) -> None:
    site, bus = Site(tmp_path / "site"), Bus(tmp_path)
    actor = PlayedActor()
    site.elsewhere, site.actor = bus.elsewhere, actor
    await bus.heads(bus.alice).write(head(*FAR), None)
    async with bus.followed():
        pass
    over = RolloutEnded(ending=RolloutEnding.DONE, reason="", still_held={})
    ended = Summary.of(RolloutReport.of([(AT, FIRST), (LATER, over)], taken=False))
    with site.visitor() as visitor:
        page = visitor.get(f"/rollouts/{ID}").text
        assert "elsewhere" in page
        assert "/do/" not in page
        visitor.headers["origin"] = f"http://{NAME}.localhost:{site.port}"
        resume = f"/rollouts/{ID}/do/resume"
        given = token(visitor, resume)
        assert "localpuppet rollout resume" in visitor.get(resume).text
        answer = visitor.post(resume, data={"token": given})
        assert (answer.status_code, actor.words) == (409, [])
        assert "is continued on another machine" in answer.text
        head_ = RolloutCheckpoint(rollout=ID, epoch=2, events=(), over=True, summary=ended)
        bus.elsewhere.heads = {ID: head_}
        site.fleet.stir()
        page = visitor.get(f"/rollouts/{ID}").text
        assert "This is its last checkpoint on the bus" in page
        assert ("/do/" in page, "json" in page) == (False, False)
        assert visitor.get(f"/rollouts/{ID}.json").status_code == 404
