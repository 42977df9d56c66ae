"""What rollout commands print: the status line, endings, and the changes of a release."""

from datetime import UTC, datetime

import click
import pytest

from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.requests.request_client import CatalogComparison
from localpuppet.node.cli.render import Lines
from localpuppet.node.releases.comparison import CatalogChanges
from localpuppet.rollout.cli.rollout_run import SHOWN, lines
from localpuppet.rollout.cli.rollout_text import RolloutProgress, how_far, outcome, rollout_rows
from localpuppet.rollout.events import (
    Event,
    LastRunsReported,
    NodeResult,
    NodeRun,
    RolloutEnding,
    RolloutPaused,
    RolloutResumed,
)
from localpuppet.rollout.rollout_options import OnFailure
from localpuppet.rollout.rollout_report import RolloutReport
from localpuppet.rollout.state import RolloutState
from tests.rollout.make import (
    began,
    node,
    reported,
    rollout_over,
    rollout_stopped,
    run_ended,
    runs_started,
)

FIRST, SECOND = NodeRun(1, node(1)), NodeRun(1, node(2))


def test_how_far_it_is() -> None:
    state = RolloutState(began([1, 2], [3]))
    assert how_far(state) == "asking whether all are ready"
    state.take(LastRunsReported(durations=dict.fromkeys(state.nodes, (2.0,))))
    state.take(runs_started(FIRST, SECOND))
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
    state.take(run_ended(FIRST, NodeResult.UNRESPONSIVE, reason="did not tell"))
    assert how_far(state, on={SECOND: 11.0}) == (
        "group 1 of 2, 1 of 3 runs ended, 1 failed, about 4s left, "
        "1 running for 11s (n02.example.com)"
    )
    state.take(rollout_stopped(RolloutEnding.FAILED, "1 node failed"))
    assert "longer" not in how_far(state, on={SECOND: 90.0}), "nothing starts any more"


def test_a_list_of_rollouts_tells_those_that_change_nothing() -> None:
    summary = {"id": "20261122T110000Z-0123", "state": "done"}
    listed = click.unstyle(rollout_rows([summary | {"noop": True}, summary]))
    noop, real = listed.splitlines()[1:]
    assert ("done (noop)" in noop, "noop" in real) == (True, False)


def test_a_pause_shows_its_commands_and_deadline_and_a_failure_its_report() -> None:
    run = "20261122T110000.000000Z-0a1b"
    paused = RolloutPaused(reason="1 node failed", since=datetime(2026, 11, 22, 11, 30, tzinfo=UTC))
    events: list[Event] = [
        began([1, 2]),
        runs_started(FIRST),
        run_ended(FIRST, NodeResult.FAILED, outcome="failed", run=run, reason="1 resource failed"),
        paused,
    ]
    told = outcome(reported(*events, taken=True))
    assert told.splitlines()[1:] == [
        f"'localpuppet report {run} --node n01.example.com' shows details",
        "'localpuppet rollout resume 20261122T110000Z-0123' or 'stop' decides, "
        "until 2026-11-22 12:30:00 UTC",
    ]


def test_a_rollout_killed_in_a_pause_says_why_it_waits(capsys: pytest.CaptureFixture[str]) -> None:
    paused = RolloutPaused(reason="1 node failed", since=datetime(2026, 11, 22, 11, 30, tzinfo=UTC))
    failed = run_ended(FIRST, NodeResult.FAILED, outcome="failed", reason="1 resource failed")
    progress = RolloutProgress(Lines(), lambda: 0.0)
    progress.replay([began([1, 2]), runs_started(FIRST), failed, paused])
    progress.take(RolloutResumed(epoch=2, caller="choria=bob", machine="laptop"))
    printed = capsys.readouterr()
    assert (printed.out + printed.err).splitlines() == [
        "resumed by choria=bob on laptop: 1 of 2 nodes left",
        "paused: 1 node failed",
        "'localpuppet rollout resume 20261122T110000Z-0123' or 'stop' decides, "
        "until 2026-11-22 12:30:00 UTC",
    ]


def test_a_stopped_rollout_offers_resume_if_nodes_are_left() -> None:
    stopped = rollout_over(RolloutEnding.STOPPED, "stopped by SIGINT")
    silent = run_ended(FIRST, NodeResult.UNRESPONSIVE, reason="was not awaited")

    def last_line(*events: Event, **options: object) -> str:
        every = [began([1, 2], **options), runs_started(FIRST, SECOND), *events, stopped]
        times = [("2026-11-22T11:00:00Z", one) for one in every]
        return outcome(RolloutReport.of(times, taken=False)).splitlines()[-1]

    resume = "'localpuppet rollout resume 20261122T110000Z-0123' continues it"
    assert last_line() == resume
    assert "run --failed-in 20261122T110000Z-0123'" in last_line(silent)
    assert last_line(silent, on_failure=OnFailure.PAUSE) == resume
    ended = [run_ended(one, outcome="changed") for one in (FIRST, SECOND)]
    assert last_line(*ended).endswith(": by SIGINT (2 done)")


def test_failed_nodes_can_be_repeated_unless_their_release_was_rolled_back() -> None:
    failed = run_ended(FIRST, NodeResult.FAILED, outcome="failed", reason="1 resource failed")
    over = rollout_over(RolloutEnding.FAILED, "1 node failed")

    def told(*events: Event) -> str:
        every = [began([1, 2]), runs_started(FIRST, SECOND), failed, *events, over]
        return outcome(reported(*every))

    assert "run --failed-in 20261122T110000Z-0123'" in told()
    assert "--failed-in" in told(rollout_stopped(RolloutEnding.FAILED, "1 node failed"))
    assert "--failed-in" not in told(
        rollout_stopped(RolloutEnding.ROLLED_BACK, "alice takes it back")
    )


def test_a_rollout_that_is_not_ready_names_the_cure() -> None:
    over = rollout_over(RolloutEnding.NOT_READY, "n01: on hold")

    def told(**options: object) -> str:
        every: list[Event] = [began([1, 2], **options), over]
        return outcome(reported(*every))

    assert told().endswith(
        "\nrepeat it when these nodes are ready, or leave them out with --skip-unready"
    )
    assert "--skip-unready" not in told(skip_unready=True)


def test_changes_are_shown_by_groups_of_nodes() -> None:
    web = CatalogChanges(
        added=tuple(f"File[/{number}]" for number in range(SHOWN)),
        removed=("Notify[x]",),
        changed={"Service[web]": ("enable", "ensure")},
        left_out=7,
    )
    told = {
        NodeName("web01.example.com"): CatalogComparison(changes=web),
        NodeName("db01.example.com"): CatalogComparison(changes=CatalogChanges()),
        NodeName("lb01.example.com"): CatalogComparison(problem="did not\x1b answer"),
        NodeName("web02.example.com"): CatalogComparison(changes=web),
    }
    text = click.unstyle("\n".join(lines(told)))
    assert text.startswith(
        "NODE               ADDED  REMOVED  CHANGED\n"
        "web01.example.com  20     1        1\n"
        "db01.example.com   0      0        0\n"
        "web02.example.com  20     1        1\n"
        "\n"
        "web01.example.com, web02.example.com\n"
        "  - Notify[x]\n"
        "  ~ Service[web]: enable, ensure\n"
        "  + File[/0]\n"
    )
    assert text.endswith(
        "  + File[/17]\n"
        "  and 9 more; --json has all\n"
        "\n"
        "db01.example.com\n"
        "  nothing changes\n"
        "lb01.example.com: not known: did not\\x1b answer"
    )
