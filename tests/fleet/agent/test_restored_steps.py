"""Steps that an earlier agent began, and the records of their runs."""

from pathlib import Path

from localpuppet.base.machine.files import write_json
from localpuppet.fleet.agent.agent import (
    RequestedRunResult,
    RestoredSteps,
    recorded_end,
)
from localpuppet.fleet.triggers.cause import CauseKind, RunCause
from tests.fleet.make import completed
from tests.rigs.recorded import Recorded

CAUSE = RunCause(
    kind=CauseKind.ROLLOUT,
    sender="choria=alice/rollout/20261122T110000Z-0a1b",
    uuid="3f2504e0-4f89-41d3-9a0c-0305e82c3301",
    timestamp=1,
    expires=None,
)
CAUSES = {"causes": [CAUSE.to_dict()], "count": 1}


def test_a_step_ends_when_its_record_does(tmp_path: Path) -> None:
    site = Recorded(tmp_path)
    run = site.begin()
    steps = RestoredSteps(lambda cause: recorded_end(site.records, cause))
    steps.add(CAUSE)
    write_json(run.request, site.request(run, causes=CAUSES).to_dict())
    assert steps.take_ended() == [], "its run has outlived the agent"
    site.finish(run)
    end = completed("changed", run=run.id)
    assert steps.take_ended() == [(CAUSE, end)]
    assert steps.take_ended() == []


def test_a_run_that_was_killed_with_its_agent_is_interrupted_and_has_its_id(
    tmp_path: Path,
) -> None:
    site = Recorded(tmp_path)
    run = site.begin()
    write_json(run.request, site.request(run, causes=CAUSES).to_dict())
    site.supervisors_die()
    end = recorded_end(site.records, CAUSE)
    assert end is not None
    assert (end.result, end.run, end.outcome) == (RequestedRunResult.OVER, run.id, "interrupted")


def test_a_step_without_a_record_was_interrupted(tmp_path: Path) -> None:
    site = Recorded(tmp_path)
    site.begin()
    steps = RestoredSteps(lambda cause: recorded_end(site.records, cause))
    steps.add(CAUSE)
    ((_, end),) = steps.take_ended()
    assert (end.run, end.outcome) == (None, "interrupted")
