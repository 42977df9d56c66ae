"""The actor, with an inventory in memory and real records, and what its collectors took."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError, StateError, UnavailableError
from localpuppet.fleet.agent.code_calls import CollectCall
from localpuppet.fleet.edges import reactor
from localpuppet.fleet.edges.reactor import DEBOUNCE, RECHECK, SHARE, Collectors, Pace
from localpuppet.fleet.exports.recording import CollectorService
from localpuppet.fleet.inventory.query.functions import FunctionCall
from localpuppet.node.runs.run import Outcome
from tests.doubles.inventory import MemoryInventory
from tests.fleet.agent.test_export_calls import A, B
from tests.fleet.agent.test_export_calls import Rig as ExportRig
from tests.fleet.edges.reacting_node import WEB, Rig
from tests.fleet.make import resource


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    rig = Rig(tmp_path)
    rig.says("10.0.0.1")
    return rig


async def test_a_change_is_reacted_to_after_a_while(rig: Rig) -> None:
    rig.end(rig.begin(1))
    async with rig.reacting():
        begun = rig.clock.monotonic()
        rig.says("10.0.0.2")
        await rig.until(lambda: rig.causes)
        assert rig.clock.monotonic() - begun >= reactor.DEBOUNCE
    (cause,) = rig.causes
    assert list(map(str, cause.path)) == [WEB.name]
    assert cause.changes[0].facts == ("ipaddress",)


async def test_a_reactor_decides_nothing_during_a_run(rig: Rig) -> None:
    rig.end(rig.begin(1))
    run = rig.begin(2)
    one = rig.reactor()
    rig.says("10.0.0.2")
    assert one.catch_up() == (True, True)
    rig.end(run)
    assert one.catch_up() == (True, False)
    one.act(one.look())
    assert len(rig.causes) == 1, "the second run queried the address before it changed"


async def test_an_answer_that_a_run_received_causes_no_reaction(rig: Rig) -> None:
    rig.end(rig.begin(1))
    one = rig.reactor()
    one.catch_up()
    rig.says("10.0.0.2")
    rig.end(rig.begin(2), Outcome.FAILED)
    assert one.catch_up() == (True, False)
    assert one.look() == []


@pytest.mark.parametrize("partial", [{"noop": True}, {"partial": True}, {"work_tree": "/x"}])
async def test_a_partial_run_does_not_settle_an_answer(rig: Rig, partial: dict[str, Any]) -> None:
    rig.end(rig.begin(1))
    one = rig.reactor()
    one.catch_up()
    rig.says("10.0.0.2")
    rig.end(rig.begin(2), **partial)
    assert one.catch_up() == (False, False)
    assert len(one.look()) == 1


async def test_an_old_view_causes_no_reaction_and_is_logged_once(rig: Rig) -> None:
    rig.end(rig.begin(1))
    rig.says("10.0.0.2")
    rig.view.note(current=rig.now() - 5000)
    async with rig.reacting(again=0.01):
        for _ in range(100):
            rig.clock.advance(0.1)
            rig.changed.set()
            await asyncio.sleep(0.002)
        assert rig.causes == []
        assert rig.log.text.count("no reactions for now: inventory: cannot answer the query") == 1
        await rig.until(lambda: rig.causes)


async def test_a_new_bus_with_lower_revisions_hides_no_change(rig: Rig) -> None:
    rig.revision = 1000
    rig.says("10.0.0.1")
    # The answer of a query with groups does not name its nodes.
    counting = "inventory[facts.networking.ip, count()] { group by facts.networking.ip }"
    rig.end(rig.begin(1, question=FunctionCall.of("puppetdb_query", [counting])))
    rig.revision = 1
    rig.says("10.0.0.2")
    rig.view.note(revision=2)
    async with rig.reacting():
        await rig.until(lambda: rig.causes)
    (cause,) = rig.causes
    assert list(map(str, cause.path)) == [WEB.name]


async def test_a_disk_that_is_full_is_tried_again(rig: Rig) -> None:
    rig.end(rig.begin(1))
    one = rig.reactor()
    one.catch_up()
    rig.says("10.0.0.2")
    rig.full = True
    with pytest.raises(StateError, match="the disk is full"):
        one.act(one.look())
    assert rig.causes == []
    rig.full = False
    rig.reactor().catch_up()  # another agent, say
    assert len(rig.causes) == 1
    assert json.loads((rig.directory / "agent" / "reactions.json").read_text())["pending"] == []


async def test_a_damaged_record_does_not_stop_reactions(rig: Rig) -> None:
    rig.end(rig.begin(1))
    one = rig.reactor()
    one.catch_up()
    run = rig.begin(2)
    run.queries.write_text("{")
    rig.end(run)
    assert one.catch_up() == (True, False)
    rig.says("10.0.0.2")
    assert len(one.look()) == 1, "the queries of the run before it"


def test_changes_are_evaluated_together_some_time_after_the_first() -> None:
    pace = Pace(0)
    pace.looked(begun=10, ended=10)
    assert pace.wait(10) == RECHECK
    pace.changed(100)
    pace.changed(101)
    assert pace.wait(101) == DEBOUNCE - 1
    for tenth in range(100):
        pace.changed(101 + tenth / 10)
    assert pace.wait(100 + DEBOUNCE) == 0, "changes without end do not put it off"


def test_looking_takes_one_part_of_the_time() -> None:
    assert Pace(5).wait(5) == DEBOUNCE, "it is looked at from time to time"
    pace = Pace(0)
    pace.looked(begun=10, ended=10)
    pace.look_at(40)
    assert pace.wait(10) == 30, "a wait that ends is looked at"
    pace = Pace(0)
    pace.looked(begun=10, ended=14)
    pace.changed(14)
    assert pace.wait(14) == 4 * (SHARE - 1)
    pace.changed(15)
    assert pace.wait(14 + 4 * (SHARE - 1)) == 0


def source(collecting: ExportRig, *, age: float = 0.0) -> Collectors:
    current = collecting.clock.now().timestamp() - age
    return Collectors(
        MemoryInventory([], current=current),
        collecting.records,
        collecting=CollectorService(collecting.held, me="me.example.com", policy=collecting.policy),
        now=lambda: collecting.clock.now().timestamp(),
        max_stale=60,
    )


@pytest.fixture
def collecting(tmp_path: Path) -> ExportRig:
    made = ExportRig(tmp_path)
    made.policy.write_text("*\tHost\t*\n")
    made.held.hold(A, "1", [resource("Host", "x", "web", ip="10.0.0.1", path="/a")])
    made.held.hold(B, "1", [resource("Host", "y", "web"), resource("Host", "z", "db")])
    return made


async def collect(collecting: ExportRig, condition: Any) -> None:
    call = CollectCall.read({"type": "Host", "filter": condition})
    await collecting.calls.collect(call, str(collecting.run.id))


async def test_a_repeated_collector_has_the_answer_of_the_run(collecting: ExportRig) -> None:
    for condition in (None, ["tag", "==", "web"]):
        await collect(collecting, condition)
    asked = source(collecting)
    for one in asked.dependencies_of(collecting.run.id):
        now = asked.ask(one.key)
        assert (now.digest, now.parts) == (one.answer.digest, one.answer.parts)
    every, web = asked.dependencies_of(collecting.run.id)
    assert web.text == "Host <<| tag == 'web' |>>"
    parts = {node: set(about) for node, about in web.answer.parts.items()}
    assert parts == {A: {"Host[x]"}, B: {"Host[y]"}}
    assert set(every.answer.parts[B]) == {"Host[y]", "Host[z]"}


async def test_a_changed_export_changes_only_the_part_of_its_node(collecting: ExportRig) -> None:
    await collect(collecting, ["tag", "==", "web"])
    asked = source(collecting)
    (before,) = asked.dependencies_of(collecting.run.id)
    collecting.held.hold(A, "2", [resource("Host", "x", "web", ip="10.0.0.1", path="/other")])
    assert asked.ask(before.key).digest == before.answer.digest  # what does not count
    collecting.held.hold(A, "3", [resource("Host", "x", "web", ip="10.0.0.2")])
    after = asked.ask(before.key)
    assert after.digest != before.answer.digest
    assert after.parts[A] != before.answer.parts[A]
    assert after.parts[B] == before.answer.parts[B]


async def test_an_old_view_or_a_refusing_policy_is_an_error(collecting: ExportRig) -> None:
    await collect(collecting, None)
    (one,) = source(collecting).dependencies_of(collecting.run.id)
    with pytest.raises(UnavailableError):
        source(collecting, age=61).ask(one.key)
    collecting.policy.write_text("")
    with pytest.raises(InvalidInputError):
        source(collecting).ask(one.key)
    with pytest.raises(InvalidInputError):
        await collect(collecting, None)
    assert source(collecting).dependencies_of(collecting.run.id) == [], (
        "a refused collector has no answer"
    )
