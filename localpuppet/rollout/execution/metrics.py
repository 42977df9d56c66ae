"""The Prometheus textfile about the last rollout of this machine.

It is a file beside `metrics.prom`, which node runs replace. The time of the last success is kept:
it is read from the previous file before that is replaced.
"""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from localpuppet.base.formats.prometheus import parse_samples, show_samples
from localpuppet.base.formats.times import parse_time
from localpuppet.base.machine.files import write_durably
from localpuppet.rollout.execution.events import RolloutEnding
from localpuppet.rollout.execution.report import PAUSED, RUNNING, RolloutReport
from localpuppet.rollout.execution.state import ProgressState

_SUCCESS = "localpuppet_last_rollout_success_timestamp_seconds"
_HELP = {
    "localpuppet_last_rollout_info": "1, with the id of the last rollout of this machine.",
    "localpuppet_last_rollout_running": "Whether a process of this machine controls it.",
    "localpuppet_last_rollout_paused": "Whether it is paused until an operator decides.",
    "localpuppet_last_rollout_noop": "Whether it was to change nothing.",
    "localpuppet_last_rollout_start_timestamp_seconds": "When it began.",
    "localpuppet_last_rollout_end_timestamp_seconds": "When it was over.",
    "localpuppet_last_rollout_duration_seconds": "How long it has been running, or ran.",
    "localpuppet_last_rollout_outcome": "1 for why it is over; all 0 before that.",
    "localpuppet_last_rollout_success": "Whether it is over and every node succeeded.",
    "localpuppet_last_rollout_nodes": "Nodes by state.",
    "localpuppet_last_rollout_resumptions": "How often it was resumed.",
    _SUCCESS: "When a rollout that was to change something last succeeded.",
}


def file_beside(metrics: Path) -> Path:
    """Return the path of the rollout textfile: `metrics-rollouts.prom` for `metrics.prom`."""
    return metrics.with_stem(f"{metrics.stem}-rollouts")


def update(path: Path, report: RolloutReport, *, now: datetime) -> None:
    """Replace the textfile.

    Args:
        path: The textfile; world-readable, without secrets.
        report: The rollout that this machine controls or controlled last.
        now: UTC.
    """
    samples = dict(_of(report, now))
    success = _success_before(path)
    if report.succeeded and report.ended is not None and not report.state.began.options.noop:
        success = f"{parse_time(report.ended).timestamp():.3f}"
    if success is not None:
        samples[_SUCCESS] = success
    write_durably(path, show_samples(samples, _HELP).encode(), mode=0o644)


def _success_before(path: Path) -> str | None:
    try:
        return parse_samples(path.read_text("utf-8")).get(_SUCCESS)
    except (OSError, UnicodeDecodeError):
        return None


def _of(report: RolloutReport, now: datetime) -> Iterator[tuple[str, str]]:
    last = "localpuppet_last_rollout_"
    over = report.state.over
    began = parse_time(report.began)
    ended = None if report.ended is None else parse_time(report.ended)
    yield f'{last}info{{id="{report.state.began.id}"}}', "1"
    yield f"{last}running", str(int(report.word in (RUNNING, PAUSED)))
    yield f"{last}paused", str(int(report.state.waits))
    yield f"{last}noop", str(int(report.state.began.options.noop))
    yield f"{last}start_timestamp_seconds", f"{began.timestamp():.3f}"
    if ended is not None:
        yield f"{last}end_timestamp_seconds", f"{ended.timestamp():.3f}"
    yield f"{last}duration_seconds", f"{((ended or now) - began).total_seconds():.3f}"
    for ending in RolloutEnding:
        value = str(int(over is not None and over.ending is ending))
        yield f'{last}outcome{{outcome="{ending}"}}', value
    yield f"{last}success", str(int(report.succeeded))
    counts = report.counts()
    for state in ProgressState:
        yield f'{last}nodes{{state="{state}"}}', str(counts.get(state, 0))
    yield f"{last}resumptions", str(report.state.epoch - 1)
