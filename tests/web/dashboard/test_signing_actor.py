"""Actions of the dashboard with a slow or failed process."""

from pathlib import Path

import pytest

from localpuppet.base.errors import LocalpuppetError
from localpuppet.base.formats.names import NodeName, RolloutId
from localpuppet.fleet.app import FleetApp
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.node.app import NodeApp
from localpuppet.rollout.commands import RolloutCommand, identify_pause
from localpuppet.rollout.events import RolloutBegan, RolloutContinued, RolloutPaused
from localpuppet.rollout.journal import Journals
from localpuppet.rollout.rollout_options import RolloutOptions
from localpuppet.web.dashboard.rollout_actions import RolloutStart
from localpuppet.web.dashboard.signing_actor import BEGINS, SigningActor
from tests.rigs.node import Node

ROLLOUT = RolloutId.parse("20261122T110000Z-00aa")


async def no_bus() -> KeyValue:
    raise AssertionError("a rollout is resumed by another process")


async def resumed(directory: Path, script: str, *, begins: float = BEGINS) -> str:
    """Have a rollout resumed; return why it was not."""
    fleet = FleetApp(NodeApp(str(Node(directory).root)))
    journals = Journals(directory / "rollouts")
    words = ["/bin/sh", "-c", script]
    actor = SigningActor(fleet, no_bus, journals, words=words, begins=begins)
    began = RolloutBegan(
        id=ROLLOUT, caller=actor.name, groups=(), options=RolloutOptions(), title=""
    )
    journals.begin(began, at="2026-11-22T11:00:00Z").close()
    with pytest.raises(LocalpuppetError) as refused:
        await actor.resume(ROLLOUT)
    return str(refused.value)


@pytest.mark.puppet
async def test_a_slow_process_is_reported_as_slow_and_not_as_failed(
    tmp_path: Path,
) -> None:
    gate = tmp_path / "gate"
    waits = f"while ! test -e {gate}; do sleep 0.05; done; echo error >&2"
    try:
        said = await resumed(tmp_path, waits, begins=0.1)
        assert "has not continued the rollout within 0 s" in said
    finally:
        gate.touch()


@pytest.mark.puppet
async def test_a_process_that_ends_at_once_is_reported_with_its_error(tmp_path: Path) -> None:
    fails = "echo localpuppet: error: no bus here >&2; exit 3"
    assert (await resumed(tmp_path, fails)).startswith("no bus here")


@pytest.mark.puppet
async def test_continue_is_refused_if_the_rollout_paused_again(tmp_path: Path) -> None:
    fleet = FleetApp(NodeApp(str(Node(tmp_path).root)))
    journals = Journals(tmp_path / "rollouts")
    actor = SigningActor(fleet, no_bus, journals, words=["false"])
    began = RolloutBegan(
        id=ROLLOUT, caller=actor.name, groups=(), options=RolloutOptions(), title=""
    )
    at, paused = "2026-11-22T11:00:00Z", RolloutPaused(reason="web01 failed")
    journal = journals.begin(began, at=at)
    journal.append(paused, at=at)
    confirmed = identify_pause(journal.state())
    journal.append(RolloutContinued(caller="choria=bob"), paused, at=at)
    with pytest.raises(LocalpuppetError, match="paused again since then"):
        await actor.say(ROLLOUT, RolloutCommand.CONTINUE, confirmed)
    assert journal.commands_after(0) == []
    await actor.say(ROLLOUT, RolloutCommand.CONTINUE, identify_pause(journal.state()))
    assert [one[1] for one in journal.commands_after(0)] == [RolloutCommand.CONTINUE]
    journal.close()


def acting(directory: Path, script: str) -> SigningActor:
    fleet = FleetApp(NodeApp(str(Node(directory).root)))
    journals = Journals(directory / "rollouts")
    return SigningActor(fleet, no_bus, journals, words=["/bin/sh", "-c", script])


@pytest.mark.puppet
async def test_a_plan_is_that_of_the_command(tmp_path: Path) -> None:
    groups = '{"groups": [{"runs": [{"node": "a"}]}, {"runs": [{"node": "b"}, {"node": "c"}]}]}'
    asked = tmp_path / "asked"
    actor = acting(tmp_path, f"echo \"$@\" > {asked}; echo '{groups}'")
    assert await actor.plan({"role": "web; id"}) == [["a"], ["b", "c"]]
    assert asked.read_text().endswith("rollout order --json --role=web; id\n")
    with pytest.raises(LocalpuppetError, match="no node has the role"):
        await acting(tmp_path, "echo 'no node has the role' >&2; exit 2").plan({"role": "x"})


@pytest.mark.puppet
async def test_a_started_rollout_is_named_and_a_refused_rollout_has_its_reason(
    tmp_path: Path,
) -> None:
    start = RolloutStart.read({"canary": "1"}, [NodeName.parse("a")])
    journal = tmp_path / "rollouts" / f"{ROLLOUT}.sqlite"
    script = f"mkdir -p {journal.parent}; touch {journal}; echo done >&2"
    assert (
        await acting(tmp_path, script).start(start) == f"A process has started rollout {ROLLOUT}."
    )
    with pytest.raises(LocalpuppetError, match="no bus here"):
        await acting(tmp_path, "echo localpuppet: error: no bus here >&2; exit 69").start(start)
