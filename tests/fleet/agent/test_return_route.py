"""The way back of a node that is cut off: longer and longer pauses, and not for ever."""

from pathlib import Path

import pytest

from localpuppet.base.formats.names import RunId
from localpuppet.fleet.agent.confirmation import TRIES, Stage
from localpuppet.fleet.triggers.cause import CauseKind
from localpuppet.node.runs.run import Outcome
from tests.fleet.agent.test_confirming import ID, OWNER, R1, WITHIN, Node
from tests.fleet.make import impossible


@pytest.fixture
def rolled(tmp_path: Path) -> Node:
    return Node(tmp_path, rollout=ID)


async def cut_off(node: Node) -> Node:
    """Have a node start to roll back while its rollout holds it."""
    node.network.answers = node.network.up = False
    node.hold()
    node.ran()
    await node.look(WITHIN + 15)
    return node


def why(node: Node) -> str:
    found = node.memory.read()
    assert found is not None
    return found.reason


async def test_a_failed_run_is_followed_by_others_in_longer_and_longer_pauses(rolled: Node) -> None:
    """Each try is a run with a new id, because the agent accepts each id once."""
    await cut_off(rolled)
    nonce = rolled.memory.read().nonce  # type: ignore[union-attr]
    assert "no longer pending: app/tags/r2: rolling back" in rolled.confirms(nonce=nonce)
    pauses: list[float] = []
    for number in range(1, TRIES):
        assert len(set(rolled.rig.ids())) == number
        rolled.ran(R1, serial=0, outcome=Outcome.FAILED)
        begun = rolled.clock.monotonic()
        assert await rolled.look(5) is Stage.ROLLING_BACK
        assert f"its run of app/tags/r1 failed, try {number + 1} of {TRIES} in " in why(rolled)
        assert str(rolled.confirming.report()["reason"]) == why(rolled)  # type: ignore[index]
        while len(rolled.rig.ids()) == number:
            await rolled.look(5)
        pauses.append(rolled.clock.monotonic() - begun)
    assert [round(seconds, -1) for seconds in pauses] == [40, 60, 120, 240]
    causes = {(cause.kind, cause.sender) for cause in rolled.rig.inbox.causes()}
    assert causes == {(CauseKind.ROLLOUT, OWNER)}
    rolled.ran(R1, serial=0, outcome=Outcome.FAILED)
    assert await rolled.look(5) is Stage.ROLLBACK_FAILED
    assert why(rolled).endswith("its run of app/tags/r1 failed, after 5 attempts")
    assert "rollback failed" in rolled.rig.log.text
    assert rolled.late[-1]
    assert await rolled.look(3600, every=60) is Stage.ROLLBACK_FAILED
    assert len(rolled.rig.ids()) == TRIES, "a person has to look"
    rolled.ran(R1, serial=0)  # by the timer
    assert await rolled.look(5) is Stage.ROLLED_BACK
    assert (why(rolled), rolled.late[-1]) == ("no connection to the bus for 1m 30s", False)
    assert len(rolled.retreats) == 1, "the rollback stays in force meanwhile"


@pytest.mark.parametrize("boot", ["a", "b"])
async def test_a_kill_or_a_reboot_begins_no_new_count(rolled: Node, boot: str) -> None:
    await cut_off(rolled)
    for _ in range(TRIES):
        assert rolled.memory.read().stage is Stage.ROLLING_BACK  # type: ignore[union-attr]
        rolled.ran(R1, serial=0, outcome=Outcome.INTERRUPTED)
        rolled.agent_starts(boot)
        await rolled.look(5)
    assert await rolled.look(5) is Stage.ROLLBACK_FAILED


async def test_tries_are_counted_even_if_the_node_keeps_one_run_record(rolled: Node) -> None:
    await cut_off(rolled)
    records = rolled.recorded.records
    for number in range(TRIES):
        assert rolled.memory.read().stage is Stage.ROLLING_BACK  # type: ignore[union-attr]
        assert len(set(rolled.rig.ids())) == number + 1
        last = RunId(rolled.ran(R1, serial=0, outcome=Outcome.FAILED))
        records.prune(runs=1, days=90, keep=last, before=lambda _: None)
        await rolled.look(300)
    assert await rolled.look(5) is Stage.ROLLBACK_FAILED
    rolled.ran(R1, serial=0)
    assert await rolled.look(5) is Stage.ROLLED_BACK


async def test_a_rollback_that_cannot_be_put_in_force_is_repeated_and_logged(rolled: Node) -> None:
    rolled.end = impossible("no space left on device")
    await cut_off(rolled)
    assert await rolled.look(15) is Stage.ROLLING_BACK
    assert f"no space left on device, try 2 of {TRIES} in 30s" in why(rolled)
    rolled.agent_starts()
    assert await rolled.look(600) is Stage.ROLLBACK_FAILED
    assert (len(rolled.retreats), rolled.rig.ids()) == (TRIES, [])
    assert "rollback failed (no connection to the bus for 1m 30s; no space left on device," in (
        rolled.rig.log.text
    )


async def test_a_run_that_never_begins_is_a_failed_try_a_waiting_one_is_not(rolled: Node) -> None:
    """Its release may be gone from the disk: then no run has a record. A person's hold may last."""
    await cut_off(rolled)
    assert await rolled.look(3600, every=30) is Stage.ROLLING_BACK, "it waits for a hold to end"
    for number in range(1, TRIES):
        (cause,) = rolled.rig.inbox.causes()
        rolled.rig.inbox.settle([cause.id])
        assert await rolled.look(40) is Stage.ROLLING_BACK
        assert f"did not begin, try {number + 1} of {TRIES} in " in why(rolled)
        rolled.agent_starts()
        await rolled.look(300)
    (cause,) = rolled.rig.inbox.causes()
    rolled.rig.inbox.settle([cause.id])
    assert await rolled.look(40) is Stage.ROLLBACK_FAILED
    assert why(rolled).endswith("its run of app/tags/r1 did not begin, after 5 attempts")
