"""The textfile of rollouts: its values during a rollout and afterwards, and what outlives it."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from localpuppet.base.formats.prometheus import parse_samples
from localpuppet.base.formats.times import show_time
from localpuppet.rollout.events import (
    Event,
    NodeResult,
    NodeRun,
    NodeRunEnded,
    NodeRunsStarted,
    RolloutBegan,
    RolloutEnded,
    RolloutEnding,
    RolloutPaused,
)
from localpuppet.rollout.rollout_report import RolloutReport, update_metrics
from tests.rollout.simulated import ID, began, node

FIRST = began([1], [2])
NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)
SUCCESS = "localpuppet_last_rollout_success_timestamp_seconds"


def told(path: Path, *events: Event, taken: bool = False, now: int = 60) -> dict[str, str]:
    """Return the values in the file after events ten seconds apart, without the metrics' prefix."""
    timed = [(show_time(NOON + timedelta(seconds=10 * n)), one) for n, one in enumerate(events)]
    metrics = path.with_name("m.prom")
    update_metrics(metrics, RolloutReport.of(timed, taken=taken), now=NOON + timedelta(seconds=now))
    found = parse_samples(path.read_text())
    return {name.removeprefix("localpuppet_last_rollout_"): found[name] for name in found}


def done(first: RolloutBegan) -> list[Event]:
    """Return the events of a rollout whose nodes all succeed, in 30 seconds."""
    turns = (NodeRun(1, node(1)), NodeRun(2, node(2)))
    ends = [
        NodeRunEnded(node_run=turn, result=NodeResult.SUCCEEDED, outcome="changed")
        for turn in turns
    ]
    return [first, NodeRunsStarted(node_runs=turns), *ends]


def test_a_running_rollout_has_its_metrics(tmp_path: Path) -> None:
    paused = RolloutPaused(reason="before group 2")
    found = told(tmp_path / "m-rollouts.prom", *done(FIRST)[:3], paused, taken=True)
    assert found[f'info{{id="{ID}"}}'] == "1"
    assert (found["running"], found["paused"], found["success"]) == ("1", "1", "0")
    assert (found['nodes{state="done"}'], found['nodes{state="running"}']) == ("1", "1")
    assert found["duration_seconds"] == "60.000"
    assert found["start_timestamp_seconds"] == f"{NOON.timestamp():.3f}"
    assert found["resumptions"] == "0"
    assert "end_timestamp_seconds" not in found
    assert not any(value == "1" for name, value in found.items() if name.startswith("outcome"))


def test_a_finished_rollout_has_its_metrics(tmp_path: Path) -> None:
    over = RolloutEnded(ending=RolloutEnding.DONE, reason="", still_held={})
    found = told(tmp_path / "m-rollouts.prom", *done(FIRST), over)
    assert (found["running"], found["success"], found['outcome{outcome="done"}']) == ("0", "1", "1")
    assert found['nodes{state="done"}'] == "2"
    assert found["duration_seconds"] == "40.000"
    assert found["end_timestamp_seconds"] == f"{NOON.timestamp() + 40:.3f}"


def test_the_last_success_outlives_failures_and_ignores_noop_rollouts(tmp_path: Path) -> None:
    path = tmp_path / "m-rollouts.prom"
    over = RolloutEnded(ending=RolloutEnding.DONE, reason="", still_held={})
    told(path, *done(began([1], [2], noop=True)), over)
    assert SUCCESS not in parse_samples(path.read_text())
    told(path, *done(FIRST), over)
    failed = told(path, FIRST, RolloutEnded(ending=RolloutEnding.FAILED, reason="", still_held={}))
    assert failed["success"] == "0"
    assert parse_samples(path.read_text())[SUCCESS] == f"{NOON.timestamp() + 40:.3f}"


def test_an_invalid_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "m-rollouts.prom"
    path.write_bytes(b"\xff not text")
    assert told(path, FIRST)["running"] == "0"
    assert path.stat().st_mode & 0o777 == 0o644
