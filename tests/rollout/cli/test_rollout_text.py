"""The status line of a running rollout: what comes first if the terminal cuts the line off."""

from datetime import UTC, datetime

from localpuppet.rollout.cli.rollout_text import how_far, outcome
from localpuppet.rollout.events import (
    Event,
    LastRunsReported,
    NodeResult,
    NodeRun,
    NodeRunEnded,
    NodeRunsStarted,
    RolloutEnded,
    RolloutEnding,
    RolloutPaused,
    RolloutStopped,
)
from localpuppet.rollout.rollout_options import OnFailure
from localpuppet.rollout.rollout_report import RolloutReport
from localpuppet.rollout.state import RolloutState
from tests.rollout.simulated import began, node

FIRST, SECOND = NodeRun(1, node(1)), NodeRun(1, node(2))


def test_how_far_it_is() -> None:
    state = RolloutState(began([1, 2], [3]))
    assert how_far(state) == "asking whether all are ready"
    state.take(LastRunsReported(durations=dict.fromkeys(state.nodes, (2.0,))))
    state.take(NodeRunsStarted(node_runs=(FIRST, SECOND)))
    assert how_far(state, on={FIRST: 1.0, SECOND: 1.0}) == (
        "group 1 of 2, 0 of 3 runs ended, about 4s left, "
        "2 running (n01.example.com, n02.example.com)"
    )
    assert how_far(state, on={FIRST: 1.0, SECOND: 90.0}) == (
        "group 1 of 2, 0 of 3 runs ended, longer than usual, "
        "2 running, one for 1m 30s (n02.example.com, n01.example.com)"
    )
    assert how_far(state, goes_on=False).endswith(
        "ended, 2 running (n01.example.com, n02.example.com)"
    )
    state.take(NodeRunEnded(node_run=FIRST, result=NodeResult.UNRESPONSIVE, reason="did not tell"))
    assert how_far(state, on={SECOND: 11.0}) == (
        "group 1 of 2, 1 of 3 runs ended, 1 failed, about 4s left, "
        "1 running for 11s (n02.example.com)"
    )
    state.take(RolloutStopped(ending=RolloutEnding.FAILED, reason="1 node failed"))
    assert "longer" not in how_far(state, on={SECOND: 90.0}), "nothing starts any more"


def test_a_pause_shows_its_commands_and_deadline_and_a_failure_its_report() -> None:
    run = "20261122T110000.000000Z-0a1b"
    paused = RolloutPaused(reason="1 node failed", since=datetime(2026, 11, 22, 11, 30, tzinfo=UTC))
    events: list[Event] = [
        began([1, 2]),
        NodeRunsStarted(node_runs=(FIRST,)),
        NodeRunEnded(
            node_run=FIRST,
            result=NodeResult.FAILED,
            outcome="failed",
            run=run,
            reason="1 resource failed",
        ),
        paused,
    ]
    told = outcome(RolloutReport.of([("2026-11-22T11:00:00Z", one) for one in events], taken=True))
    assert told.splitlines()[1:] == [
        f"'localpuppet report {run} --node n01.example.com' shows details",
        "'localpuppet rollout resume 20261122T110000Z-0123' or 'stop' decides, "
        "until 2026-11-22 12:30:00 UTC",
    ]


def test_a_stopped_rollout_offers_resume_if_nodes_are_left() -> None:
    stopped = RolloutEnded(ending=RolloutEnding.STOPPED, reason="stopped by SIGINT", still_held={})
    silent = NodeRunEnded(node_run=FIRST, result=NodeResult.UNRESPONSIVE, reason="was not awaited")

    def last_line(*events: Event, **options: object) -> str:
        every = [
            began([1, 2], **options),
            NodeRunsStarted(node_runs=(FIRST, SECOND)),
            *events,
            stopped,
        ]
        times = [("2026-11-22T11:00:00Z", one) for one in every]
        return outcome(RolloutReport.of(times, taken=False)).splitlines()[-1]

    resume = "'localpuppet rollout resume 20261122T110000Z-0123' continues it"
    assert last_line() == resume
    assert "run --failed-in 20261122T110000Z-0123'" in last_line(silent)
    assert last_line(silent, on_failure=OnFailure.PAUSE) == resume
    ended = [
        NodeRunEnded(node_run=one, result=NodeResult.SUCCEEDED, outcome="changed")
        for one in (FIRST, SECOND)
    ]
    assert last_line(*ended).endswith(": by SIGINT (2 done)")


def test_failed_nodes_can_be_repeated_unless_their_release_was_rolled_back() -> None:
    failed = NodeRunEnded(
        node_run=FIRST, result=NodeResult.FAILED, outcome="failed", reason="1 resource failed"
    )
    over = RolloutEnded(ending=RolloutEnding.FAILED, reason="1 node failed", still_held={})

    def told(*events: Event) -> str:
        every = [began([1, 2]), NodeRunsStarted(node_runs=(FIRST, SECOND)), failed, *events, over]
        return outcome(
            RolloutReport.of([("2026-11-22T11:00:00Z", one) for one in every], taken=False)
        )

    assert "run --failed-in 20261122T110000Z-0123'" in told()
    assert "--failed-in" in told(
        RolloutStopped(ending=RolloutEnding.FAILED, reason="1 node failed")
    )
    assert "--failed-in" not in told(
        RolloutStopped(ending=RolloutEnding.ROLLED_BACK, reason="alice takes it back")
    )


def test_a_rollout_that_is_not_ready_names_the_cure() -> None:
    over = RolloutEnded(ending=RolloutEnding.NOT_READY, reason="n01: on hold", still_held={})

    def told(**options: object) -> str:
        every: list[Event] = [began([1, 2], **options), over]
        return outcome(
            RolloutReport.of([("2026-11-22T11:00:00Z", one) for one in every], taken=False)
        )

    assert told().endswith(
        "\nrepeat it when these nodes are ready, or leave them out with --skip-unready"
    )
    assert "--skip-unready" not in told(skip_unready=True)
