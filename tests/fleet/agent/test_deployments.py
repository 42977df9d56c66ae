"""Deployments and compilations for callers: one at a time, with a result for repeated requests."""

import asyncio
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import BusyError, OnHoldError
from localpuppet.base.formats.names import ReleasePath, RolloutId
from localpuppet.base.formats.times import show_time
from localpuppet.fleet.agent.agent import RunCompletion
from localpuppet.fleet.agent.rollout_steps import (
    DONE,
    EACH,
    MOST,
    WORKING,
    CompilationJobs,
    Deployment,
    Deployments,
)
from localpuppet.fleet.requests.request import Compile, Deploy, DeployAction, RolloutReference
from localpuppet.node.runs.holds import Hold, Holds, rollout_owner
from tests.doubles.ports import FakeLog
from tests.fleet.agent.test_agent import Rig
from tests.fleet.make import busy, completed, impossible

ID = RolloutId("20261122T110000Z-0a1b")
OWNER = rollout_owner("choria=alice", ID)
R2 = Deploy(release=ReleasePath("foo/tags/r2"), action=DeployAction.APPLY, serial=3)
OURS = replace(R2, rollout=RolloutReference(id=ID, epoch=1))
OVER = completed()


class FakeDeploying:
    def __init__(self) -> None:
        self.orders: list[Deployment] = []
        self.ends: asyncio.Queue[RunCompletion] = asyncio.Queue()
        self.on = False

    async def run(self, order: Deployment) -> RunCompletion:
        assert not self.on, "never two at once"
        self.on = True
        self.orders.append(order)
        try:
            return await self.ends.get()
        finally:
            self.on = False


class Site:
    def __init__(self, directory: Path) -> None:
        self.rig = Rig(directory)
        self.holds = Holds(directory / "holds", None, self.rig.clock)
        self.runner = FakeDeploying()
        self.deployments = Deployments(
            self.runner,
            agent=self.rig.agent,
            inbox=self.rig.inbox,
            holds=lambda: self.holds,
            log=self.rig.log,
            busy_again=0.0,
        )

    def ask(self, args: Deploy = R2, caller: str = "choria=alice") -> Any:
        return self.deployments.ask(caller, args)

    def hold(self, owner: str) -> None:
        now = self.rig.clock.now()
        until = show_time(now + timedelta(seconds=600))
        self.holds.add(Hold(owner=owner, reason="r", since=show_time(now), until=until))

    async def until_told(self, args: Deploy = R2) -> Any:
        """Repeat the request, as callers do, until the node has a result; return the result."""
        while (told := self.ask(args)) == WORKING:
            await asyncio.sleep(0)
        return told


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


async def test_a_deployment_is_done_once_and_another_request_gets_its_result(site: Site) -> None:
    assert [site.ask(), site.ask()] == [WORKING, WORKING]
    site.runner.ends.put_nowait(OVER)
    assert await site.until_told() == DONE
    (order,) = site.runner.orders
    assert (order.assignment.by, order.assignment.serial) == ("choria=alice", 3)
    assert str(site.rig.agent.waiting) == "request from choria=alice"
    assert "done: apply foo/tags/r2 for choria=alice" in site.rig.log.text


async def test_a_refusal_is_returned_once_and_a_repeated_request_tries_again(site: Site) -> None:
    for _ in range(2):
        site.runner.ends.put_nowait(impossible("no such class"))
        assert await site.until_told() == "no such class"
    assert len(site.runner.orders) == 2
    assert site.rig.agent.waiting is None


async def test_a_store_that_is_locked_is_waited_for(site: Site) -> None:
    for end in (busy("gc"), OVER):
        site.runner.ends.put_nowait(end)
    assert await site.until_told() == DONE


async def test_deployments_are_done_one_at_a_time_and_their_number_is_limited(site: Site) -> None:
    for caller in [f"choria=c{number}" for number in range(MOST // EACH)]:
        for serial in range(1, EACH + 1):
            assert site.ask(replace(R2, serial=serial), caller) == WORKING
        with pytest.raises(BusyError, match=f"4 deployments of {caller} wait on this node"):
            site.ask(replace(R2, serial=99), caller)
    with pytest.raises(BusyError, match="0 deployments of choria=alice wait on this node, 16 in"):
        site.ask()
    for _ in range(MOST):
        site.runner.ends.put_nowait(OVER)
    while len(site.runner.orders) < MOST or site.runner.on:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    site.runner.ends.put_nowait(OVER)
    assert await site.until_told() == DONE, "deployments that no caller asks about make room"


async def test_a_release_is_changed_by_the_rollout_that_holds_the_node_alone(site: Site) -> None:
    with pytest.raises(BusyError, match="its hold is over"):
        site.ask(OURS)
    site.hold(OWNER)
    with pytest.raises(OnHoldError, match="on hold: r"):
        site.ask(R2)
    assert site.ask(replace(R2, action=DeployAction.STAGE)) == WORKING, "that changes nothing"
    site.runner.ends.put_nowait(OVER)
    site.runner.ends.put_nowait(OVER)
    assert await site.until_told(OURS) == DONE
    assert site.rig.agent.waiting is None, "its run is a step of the rollout"
    site.hold("choria=bob")
    with pytest.raises(OnHoldError, match="on hold: r"):
        site.ask(OURS)


async def test_a_hold_of_a_person_does_not_stop_a_deployment(site: Site) -> None:
    site.hold("choria=bob")
    site.runner.ends.put_nowait(OVER)
    assert site.ask() == WORKING
    assert await site.until_told() == DONE


async def test_a_hold_that_ends_while_it_waits_stops_it(site: Site) -> None:
    site.hold(OWNER)
    assert site.ask(replace(R2, action=DeployAction.STAGE)) == WORKING
    assert site.ask(OURS) == WORKING
    await asyncio.sleep(0)
    site.holds.remove(OWNER)
    site.runner.ends.put_nowait(OVER)
    await site.rig.until("refused to apply")
    assert [order.args.action for order in site.runner.orders] == [DeployAction.STAGE]


async def test_a_controller_that_took_over_assigns_for_the_first_caller(site: Site) -> None:
    """A rollback of the release has to use that name."""
    site.hold(OWNER)
    taken = replace(R2, rollout=RolloutReference(id=ID, epoch=2, caller="choria=alice"))
    assert site.ask(taken, "choria=bob") == WORKING
    await asyncio.sleep(0)
    (order,) = site.runner.orders
    assert (order.assignment.by, order.owner) == ("choria=alice", OWNER)
    with pytest.raises(BusyError, match="was resumed since"):
        site.ask(OURS)
    with pytest.raises(BusyError, match="another controller continues"):
        site.ask(taken)
    site.runner.ends.put_nowait(OVER)
    await site.rig.until("done: apply")
    assert site.ask(taken, "choria=bob") == DONE


async def test_an_earlier_epoch_is_refused_and_a_later_one_continues(site: Site) -> None:
    site.hold(OWNER)
    assert site.ask(OURS) == WORKING
    later = replace(R2, rollout=RolloutReference(id=ID, epoch=2))
    assert site.ask(later) == WORKING
    with pytest.raises(BusyError, match="was resumed since"):
        site.ask(OURS)
    site.runner.ends.put_nowait(OVER)
    assert await site.until_told(later) == DONE
    assert len(site.runner.orders) == 1, "the same deployment in another epoch is the same"


class FakeCompiling:
    def __init__(self) -> None:
        self.on = 0
        self.ends: asyncio.Queue[RunCompletion] = asyncio.Queue()

    async def run(self, order: Compile) -> RunCompletion:
        self.on += 1
        assert self.on == 1, "never two at once"
        try:
            return await self.ends.get()
        finally:
            self.on -= 1


def compile_of(number: int) -> Compile:
    return Compile(release=ReleasePath(f"app/tags/r{number}"))


async def test_jobs_are_compiled_one_after_the_other_and_return_their_results() -> None:
    runner = FakeCompiling()
    candidates = CompilationJobs(runner, log=FakeLog())
    for number in range(2):
        assert candidates.ask("choria=alice", compile_of(number)) == WORKING
    with pytest.raises(BusyError, match="2 compilations of choria=alice wait on this node"):
        candidates.ask("choria=alice", compile_of(2))
    assert candidates.ask("choria=bob", compile_of(0)) == WORKING
    runner.ends.put_nowait(completed(details={"added": ["x"]}))
    runner.ends.put_nowait(impossible("does not compile"))
    runner.ends.put_nowait(impossible())
    for _ in range(20):
        await asyncio.sleep(0)
    assert candidates.ask("choria=alice", compile_of(0)) == {"state": "done", "added": ["x"]}
    assert candidates.ask("choria=alice", compile_of(1)) == "does not compile"
    assert candidates.ask("choria=bob", compile_of(0)) == "the catalog was not compiled"
