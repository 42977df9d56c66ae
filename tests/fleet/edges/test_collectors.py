"""What collectors took, as dependencies of a run."""

from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.fleet.agent.code_calls import CollectCall
from localpuppet.fleet.edges.reactor import Collectors
from localpuppet.fleet.exports.recording import CollectorService
from tests.doubles.inventory import MemoryInventory
from tests.fleet.agent.test_export_calls import A, B, Rig
from tests.fleet.make import resource


def source(rig: Rig, *, age: float = 0.0) -> Collectors:
    current = rig.clock.now().timestamp() - age
    return Collectors(
        MemoryInventory([], current=current),
        rig.records,
        collecting=CollectorService(rig.held, me="me.example.com", policy=rig.policy),
        now=lambda: rig.clock.now().timestamp(),
        max_stale=60,
    )


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    made = Rig(tmp_path)
    made.policy.write_text("*\tHost\t*\n")
    made.held.hold(A, "1", [resource("Host", "x", "web", ip="10.0.0.1", path="/a")])
    made.held.hold(B, "1", [resource("Host", "y", "web"), resource("Host", "z", "db")])
    return made


async def collect(rig: Rig, condition: Any) -> None:
    call = CollectCall.read({"type": "Host", "filter": condition})
    await rig.calls.collect(call, str(rig.run.id))


async def test_a_repeated_collector_has_the_answer_of_the_run(rig: Rig) -> None:
    for condition in (None, ["tag", "==", "web"]):
        await collect(rig, condition)
    asked = source(rig)
    for one in asked.dependencies_of(rig.run.id):
        now = asked.ask(one.key)
        assert (now.digest, now.parts) == (one.answer.digest, one.answer.parts)
    every, web = asked.dependencies_of(rig.run.id)
    assert web.text == "Host <<| tag == 'web' |>>"
    parts = {node: set(about) for node, about in web.answer.parts.items()}
    assert parts == {A: {"Host[x]"}, B: {"Host[y]"}}
    assert set(every.answer.parts[B]) == {"Host[y]", "Host[z]"}


async def test_a_changed_export_changes_only_the_part_of_its_node(rig: Rig) -> None:
    await collect(rig, ["tag", "==", "web"])
    asked = source(rig)
    (before,) = asked.dependencies_of(rig.run.id)
    rig.held.hold(A, "2", [resource("Host", "x", "web", ip="10.0.0.1", path="/other")])
    assert asked.ask(before.key).digest == before.answer.digest  # what does not count
    rig.held.hold(A, "3", [resource("Host", "x", "web", ip="10.0.0.2")])
    after = asked.ask(before.key)
    assert after.digest != before.answer.digest
    assert after.parts[A] != before.answer.parts[A]
    assert after.parts[B] == before.answer.parts[B]


async def test_an_old_view_or_a_refusing_policy_is_an_error(rig: Rig) -> None:
    await collect(rig, None)
    (one,) = source(rig).dependencies_of(rig.run.id)
    with pytest.raises(UnavailableError):
        source(rig, age=61).ask(one.key)
    rig.policy.write_text("")
    with pytest.raises(InvalidInputError):
        source(rig).ask(one.key)
    with pytest.raises(InvalidInputError):
        await collect(rig, None)
    assert source(rig).dependencies_of(rig.run.id) == [], "a refused collector has no answer"
