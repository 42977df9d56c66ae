"""Steps of rollouts on a node: alone, once, through one hold, and after which entries."""

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import BusyError, OnHoldError
from localpuppet.base.formats.names import NodeName, RolloutId
from localpuppet.base.formats.times import show_time
from localpuppet.base.machine.files import write_json
from localpuppet.fleet.agent.agent import (
    RequestedRunResult,
    RestoredSteps,
    RunCompletion,
    recorded_end,
)
from localpuppet.fleet.agent.rollout_steps import FRESH, AwaitedEntries, RolloutSteps
from localpuppet.fleet.exports.held import HeldExports
from localpuppet.fleet.inventory.admission import ReceivedEntry
from localpuppet.fleet.inventory.entry import ExportsSummary, InventoryEntry
from localpuppet.fleet.inventory.outbox import AwaitedEntry, awaited
from localpuppet.fleet.inventory.tables import EntryRows
from localpuppet.fleet.inventory.view import View
from localpuppet.fleet.requests.request import RolloutReference, RolloutStep, RunOnce, step_uuid
from localpuppet.fleet.triggers.cause import CauseKind, RunCause
from localpuppet.fleet.triggers.coalescing import PATIENCE
from localpuppet.node.runs.holds import Hold, Holds, HoldStatus
from tests.doubles.identities import person
from tests.fleet.agent.test_agent import OVER, Rig
from tests.fleet.inventory.entries import entry, signed
from tests.fleet.make import a_cause, busy, completed, impossible
from tests.rigs.recorded import Recorded

ID = RolloutId("20261122T110000Z-0a1b")
ALICE, BOB = "choria=alice", "choria=bob"
OWNER = f"{ALICE}/rollout/{ID}"
ENTRY = AwaitedEntry(node=NodeName("b.example.com"), digest="b" * 64, at=7.0)
DB = AwaitedEntry(node=NodeName("db.example.com"), digest="d" * 64, at=3.0)
OTHER = "choria=bob/rollout/20261122T110000Z-ffff"


class Site:
    def __init__(
        self, directory: Path, before: "Site | None" = None, *, begun: RunCompletion | None = None
    ) -> None:
        sender = person("a.example.com") if before is None else before.rig.sender
        self.rig: Rig = Rig(directory, sender=sender, begun=begun)
        self.holds = Holds(directory / "holds", None, self.rig.clock)
        self.rig.held = self._held  # type: ignore[method-assign]
        self.rig.__post_init__()
        self.steps = RolloutSteps(
            self.rig.agent,
            inbox=self.rig.inbox,
            holds=lambda: self.holds,
            clock=self.rig.clock,
            entry=lambda: ENTRY,
            awaits_entries=lambda: True,
        )

    def _held(self) -> HoldStatus | None:
        return HoldStatus.by(self.holds.active())

    def hold(self, owner: str = OWNER, seconds: float = 600) -> None:
        now = self.rig.clock.now()
        until = show_time(now + timedelta(seconds=seconds))
        self.holds.add(Hold(owner=owner, reason="r", since=show_time(now), until=until))

    def ask(self, step: int = 1, *, epoch: int = 1, noop: bool = False) -> Any:
        return self.told(step, epoch=epoch, noop=noop)["step"]

    def told(
        self,
        step: int = 1,
        *,
        epoch: int = 1,
        noop: bool = False,
        after: tuple[AwaitedEntry, ...] = (),
        by: str = ALICE,
        looked: int = 0,
    ) -> Any:
        rollout = RolloutStep(id=ID, epoch=epoch, step=step, caller=ALICE)
        return self.steps.run(
            by,
            RunOnce(noop=noop, awaited_entries=after, noop_step=looked, rollout=rollout),
            rollout,
        )


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def test_a_step_runs_once_and_alone_despite_the_hold_of_its_rollout(site: Site) -> None:
    """A waiting trigger stays due, and its ttl does not run meanwhile."""
    rig = site.rig
    site.hold()
    async with rig.working():
        rig.agent.receive_triggers([rig.token(1, ttl=1)])
        rig.clock.advance(30)
        assert site.ask(noop=True)["state"] == "waiting"
        order = await rig.runner.orders.get()
        assert (order.noop, order.through, order.causes["count"]) == (True, OWNER, 1)
        assert site.ask()["state"] == "running"
        rig.runner.ends.put_nowait(OVER)
        await rig.until("run 1 changed")
        over = {"state": "over", "run": "1", "outcome": "changed", "reason": ""}
        assert site.ask() == over
        ended = rig.agent.outcomes[-1]
        assert (ended.sender, ended.uuid) == (OWNER, step_uuid(OWNER, 1))
        assert rig.runner.orders.empty()
        site.holds.remove(OWNER)
        rig.agent.recheck()
        order = await rig.runner.orders.get()
        assert order.text == "trigger from a.example.com"
        assert order.through is None
        rig.runner.ends.put_nowait(OVER)
    assert site.ask(epoch=2) == over, "also when the rollout is resumed"


async def test_a_step_without_its_hold_or_beside_another_is_refused(site: Site) -> None:
    with pytest.raises(BusyError, match="its hold is over"):
        site.ask()
    site.hold()
    site.hold("bob")
    with pytest.raises(OnHoldError, match="held by bob"):
        site.ask()
    site.holds.remove("bob")
    assert site.ask()["state"] == "waiting", "the refused step was not remembered"
    site.steps.check_hold(OWNER)
    with pytest.raises(OnHoldError, match=str(ID)):
        site.steps.check_hold(OTHER)


async def test_a_step_requires_a_recent_prediction(site: Site) -> None:
    """A refused step is not remembered; an accepted step is not accepted again."""
    rig, stale = site.rig, {"accepted": False, "repeat_noop": True}
    site.hold()
    assert site.told(1, looked=7) == stale, "there was no such prediction"
    async with rig.working():
        site.ask(7, noop=True)
        assert site.told(1, looked=7) == stale, "it is not over"
        await rig.runner.orders.get()
        rig.runner.ends.put_nowait(OVER)
        await rig.until("run 1 changed")
        rig.clock.advance(FRESH + 1)
        assert site.told(1, looked=7) == stale
        rig.clock.advance(-FRESH - 2)
        assert site.told(1, looked=7) == stale, "the clock was set back"
        rig.clock.advance(FRESH + 1)
        assert site.told(1, looked=7)["accepted"]
        await rig.runner.orders.get()
        rig.runner.ends.put_nowait(OVER)
        rig.clock.advance(FRESH)
        assert site.told(1, looked=7)["accepted"], "it is known by now"


async def test_a_request_of_an_earlier_epoch_is_refused(site: Site) -> None:
    site.steps.hear(ALICE, RolloutReference(id=ID, epoch=2))
    site.hold()
    with pytest.raises(BusyError, match="was resumed since"):
        site.steps.hear(ALICE, RolloutReference(id=ID, epoch=1))
    with pytest.raises(BusyError, match="was resumed since"):
        site.ask(epoch=1)
    assert site.ask(epoch=2)["state"] == "waiting"


async def test_a_controller_that_takes_over_gets_the_steps_and_alone_its_epoch(site: Site) -> None:
    site.hold()
    assert site.told()["step"]["state"] == "waiting"
    assert site.told(epoch=2, by=BOB)["step"]["state"] == "waiting"
    assert sum("accepted a step" in line for _, line in site.rig.log.lines) == 1
    with pytest.raises(BusyError, match="was resumed since"):
        site.told(epoch=1)
    for other in (ALICE, "choria=carol"):
        with pytest.raises(BusyError, match=r"another controller continues .* in the same epoch 2"):
            site.told(epoch=2, by=other)
        with pytest.raises(BusyError, match="another controller continues"):
            site.steps.hear(other, RolloutReference(id=ID, epoch=2, caller=ALICE))
    assert {**site.steps.speaks(OWNER), "since": ""} == {"epoch": 2, "by": BOB, "since": ""}
    assert site.told(epoch=3)["step"]["state"] == "waiting"
    spoken = site.steps.speaks(OWNER)
    assert spoken == {"epoch": 3, "by": "", "since": show_time(site.rig.clock.now())}
    assert site.steps.speaks("choria=alice/rollout/20261122T110000Z-ffff") == {}


async def test_a_step_whose_hold_ends_first_is_dropped_and_taken_when_resumed(site: Site) -> None:
    rig = site.rig
    site.hold(seconds=10)
    site.ask()
    rig.clock.advance(11)
    async with rig.working():
        await rig.until("its rollout no longer holds this node")
        assert site.ask()["outcome"] == "dropped"
        site.hold()
        assert site.ask()["outcome"] == "dropped", "the same epoch gets the result"
        assert site.ask(epoch=2)["state"] == "waiting"
        await rig.runner.orders.get()
        rig.runner.ends.put_nowait(OVER)
        await rig.until("run 1 changed")


async def test_a_node_that_is_busy_takes_the_step_later(site: Site) -> None:
    rig = site.rig
    site.hold()
    async with rig.working():
        site.ask()
        await rig.runner.orders.get()
        rig.runner.ends.put_nowait(busy("busy"))
        await rig.until("postponed the run")
        assert site.ask()["state"] == "waiting"
        rig.clock.advance(2)
        await rig.runner.orders.get()
        rig.runner.ends.put_nowait(impossible("no input"))
        await rig.until("no run for a step of")
        found = site.ask()
        assert found["outcome"] == "dropped"
        assert found["reason"] == "no run could be started: no input"


async def test_a_step_that_began_never_begins_again(tmp_path: Path) -> None:
    """The agent is killed once before the run begins, and once in the middle of it."""
    site = Site(tmp_path)
    site.hold()
    site.ask()
    site.rig.inbox.close()
    again = Site(tmp_path, site)
    assert again.ask()["state"] == "waiting"
    again.rig.inbox.set_began(f"{OWNER}/{step_uuid(OWNER, 1)}", began=True)
    again.rig.inbox.close()
    third = Site(tmp_path, again)
    found = third.ask()
    assert found["outcome"] == "interrupted"
    assert found["reason"] == "the agent was killed during the run"
    assert third.rig.agent.outcomes[-1].outcome == "interrupted"
    assert third.ask(epoch=2) == found
    assert third.rig.inbox.causes() == []


async def test_the_run_of_a_killed_agent_is_reported_with_its_id_and_end(tmp_path: Path) -> None:
    """If the run outlives the agent, the next agent waits for the end of its record."""
    site = Site(tmp_path)
    site.hold()
    site.ask()
    site.rig.inbox.set_began(f"{OWNER}/{step_uuid(OWNER, 1)}", began=True)
    site.rig.inbox.close()
    again = Site(tmp_path, site, begun=busy(run="7"))
    assert again.ask()["state"] == "running"
    async with again.rig.working():
        again.rig.begun = completed("changed", run="7")
        again.rig.agent.recheck()
        await again.rig.until("changed: 7")
    assert again.ask() == {"state": "over", "run": "7", "outcome": "changed", "reason": ""}
    assert again.rig.agent.outcomes[-1].run == "7"
    assert again.rig.runner.orders.empty()


async def test_a_step_waits_for_entries_of_other_nodes_and_returns_its_own(site: Site) -> None:
    """No other run starts meanwhile; a killed agent resumes waiting."""
    rig = site.rig
    site.hold()
    rig.missing = "db.example.com"
    assert "entry" not in site.told(after=(DB,))
    (cause,) = rig.inbox.causes()
    assert cause.awaited_entries == (DB,)
    async with rig.working():
        begun = rig.alive
        while rig.alive < begun + 3:
            rig.agent.recheck()
            await asyncio.sleep(0)
        assert rig.runner.orders.empty()
        rig.missing = ""
        rig.agent.recheck()
        await rig.runner.orders.get()
        rig.runner.ends.put_nowait(OVER)
        await rig.until("run 1 changed")
        assert site.told(after=(DB,))["entry"] == ENTRY.to_dict()
        assert "entry" not in site.told(noop=True), "a noop step has no entry"


async def test_a_step_that_waits_too_long_fails_and_names_the_node(site: Site) -> None:
    rig = site.rig
    site.hold(seconds=PATIENCE * 2)
    rig.missing = "db.example.com"
    site.told(after=(DB,))
    rig.clock.advance(PATIENCE)
    async with rig.working():
        await rig.until("dropped")
        step = site.told(after=(DB,))["step"]
        assert step["outcome"] == "dropped"
        assert step["reason"].endswith(": db.example.com")
        assert rig.runner.orders.empty()


CAUSE = a_cause(CauseKind.ROLLOUT, sender=OWNER)
CAUSES = {"causes": [CAUSE.to_dict()], "count": 1}


def test_a_step_ends_when_its_record_does(tmp_path: Path) -> None:
    site = Recorded(tmp_path)
    run = site.begin()
    steps = RestoredSteps(lambda cause: recorded_end(site.records, cause))
    steps.add(CAUSE)
    ((_, end),) = steps.take_ended()
    assert (end.run, end.outcome) == (None, "interrupted"), "there is no record of it"
    steps.add(CAUSE)
    write_json(run.request, site.request(run, causes=CAUSES).to_dict())
    assert steps.take_ended() == [], "its run has outlived the agent"
    site.finish(run)
    end = completed("changed", run=run.id)
    assert steps.take_ended() == [(CAUSE, end)]
    assert steps.take_ended() == []


def test_a_run_that_was_killed_with_its_agent_is_interrupted_and_has_its_id(tmp_path: Path) -> None:
    site = Recorded(tmp_path)
    run = site.begin()
    write_json(run.request, site.request(run, causes=CAUSES).to_dict())
    site.supervisors_die()
    end = recorded_end(site.records, CAUSE)
    assert end is not None
    assert (end.result, end.run, end.outcome) == (RequestedRunResult.OVER, run.id, "interrupted")


DB01 = person("db01.example.com")
NAME = NodeName("db01.example.com")
NEW = entry(NAME, at=200.0)


@pytest.fixture
def view(tmp_path: Path) -> Iterator[View]:
    with closing(View(tmp_path / "view.sqlite", now=lambda: 300.0)) as made:
        yield made


@pytest.fixture
def held(tmp_path: Path) -> Iterator[HeldExports]:
    with closing(HeldExports(tmp_path / "exports.sqlite")) as made:
        yield made


def take(view: View, said: InventoryEntry) -> None:
    view.take([ReceivedEntry(node=NAME, token=signed(DB01, said), found=EntryRows.of(said))])


def awaited_of(view: View, held: HeldExports) -> AwaitedEntries:
    return AwaitedEntries(view, held, is_current=lambda: True)


def waiting(said: InventoryEntry) -> RunCause:
    one = awaited(said)
    assert isinstance(one, AwaitedEntry)
    sender = "choria=alice/rollout/20261122T110000Z-0a1b"
    return a_cause(CauseKind.ROLLOUT, sender=sender, awaited_entries=(one,))


def test_an_entry_is_missing_until_it_or_a_newer_is_there(view: View, held: HeldExports) -> None:
    entries, step = awaited_of(view, held), waiting(NEW)
    assert RunCause.from_dict(step.to_dict()) == step, "a killed agent resumes waiting"
    assert entries.lacking(step) == NAME
    take(view, entry(NAME, at=100.0, roles=("old",)))
    assert entries.lacking(step) == NAME
    take(view, NEW)
    assert entries.lacking(step) == ""
    take(view, entry(NAME, at=201.0, roles=("newer",)))
    assert entries.lacking(step) == ""


def test_an_equal_entry_of_an_earlier_time_is_enough(view: View, held: HeldExports) -> None:
    take(view, replace(NEW, at=100.0))
    assert awaited_of(view, held).lacking(waiting(NEW)) == ""


def test_too_old_an_entry_is_unpacked_once(view: View, held: HeldExports, tmp_path: Path) -> None:
    take(view, entry(NAME, at=100.0, roles=("old",)))
    entries, step = awaited_of(view, held), waiting(NEW)
    assert entries.lacking(step) == NAME
    with closing(sqlite3.connect(tmp_path / "view.sqlite")) as connection, connection:
        connection.execute("UPDATE entries SET token = x'00'")
    assert entries.lacking(step) == NAME
    assert "damaged" in awaited_of(view, held).lacking(step)


def test_the_reason_for_a_distrusted_entry_is_shown(view: View, held: HeldExports) -> None:
    view.distrust(NAME, "its key was revoked")
    assert awaited_of(view, held).lacking(waiting(NEW)) == f"{NAME} (its key was revoked)"


def test_a_step_waits_for_the_exports_of_an_entry_too(view: View, held: HeldExports) -> None:
    exporting = entry(NAME, at=200.0, exports=ExportsSummary(count=1, digest="e" * 64, size=9))
    entries, step = awaited_of(view, held), waiting(exporting)
    view.take(
        [ReceivedEntry(node=NAME, token=signed(DB01, exporting), found=EntryRows.of(exporting))]
    )
    assert view.exporters() == {NAME: "e" * 64}
    assert entries.lacking(step) == NAME
    held.note_unread([(NAME, "e" * 64)], "not read from the bus yet")
    assert entries.lacking(step) == NAME
    held.refuse(NAME, "e" * 64, "too large", tried=True)
    assert entries.lacking(step) == "", "the collector reports refused exports"
    held.hold(NAME, "e" * 64, [])
    assert entries.lacking(step) == ""


def test_a_node_without_rights_waits_for_none(
    view: View, held: HeldExports, tmp_path: Path
) -> None:
    """Its view is never current: otherwise each step would fail after minutes of waiting."""
    for current in (True, False):
        assert AwaitedEntries(view, held, is_current=lambda: current).come() is current  # noqa: B023
    (tmp_path / "view.sqlite").mkdir()
    assert not AwaitedEntries(view, held, is_current=lambda: bool(view.current_until())).come()
