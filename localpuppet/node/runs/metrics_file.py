"""Writes the Prometheus textfile `metrics.prom` of this node, replaced atomically.

The time of the last success outlives later failures: it is read from the old file.
"""

import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.base.formats.prometheus import parse_samples, show_samples
from localpuppet.base.formats.times import parse_time
from localpuppet.base.machine.files import write_durably
from localpuppet.node.runs.run import Outcome, Status

if TYPE_CHECKING:
    from localpuppet.node.releases.release_records import Rollback
    from localpuppet.node.runs.run import Attempt


_ATTEMPT = "localpuppet_last_attempt_"
_REFUSED = f"{_ATTEMPT}refused"
_OVERDUE = "localpuppet_confirmation_overdue"

_HELP = {
    "localpuppet_last_run_timestamp_seconds": "When the last run ended.",
    "localpuppet_last_success_timestamp_seconds": "The last success of a whole release.",
    "localpuppet_last_run_outcome": "1 for the outcome of the last run.",
    "localpuppet_last_run_success": "Whether the last run succeeded.",
    "localpuppet_last_run_noop": "Whether the last run was to change nothing.",
    "localpuppet_last_run_work_tree": "Whether the last run tried a work tree, not a release.",
    "localpuppet_last_run_duration_seconds": "How long the last run took, start to record.",
    "localpuppet_last_run_phase_seconds": "How long Puppet took for what, as its report says.",
    "localpuppet_last_run_resources": "Resources of the last run's catalog.",
    "localpuppet_last_attempt_timestamp_seconds": "When an apply was last refused before it ran.",
    "localpuppet_last_attempt_refused": "1 until a good run, with release and class of refusal.",
    "localpuppet_rolled_back": "1 while the node runs another release than its input wants.",
    "localpuppet_confirmation_overdue": "1 while a release waits too long for its confirmation.",
    "localpuppet_holds": "Holds in force on this node; 0 means that it may run.",
    "localpuppet_last_run_warm": "Whether the fork server made the last run's Puppet.",
    "localpuppet_fork_server_resident_memory_bytes": "What the agent's fork server takes.",
}


def update(
    path: Path,
    status: Status | None,
    *,
    holds: int,
    rollback: "Rollback | None",
    now: datetime,
    fork_server: int | None = None,
) -> None:
    """Replace the textfile.

    Args:
        path: The textfile; world-readable, as it holds no secrets.
        status: The run that just ended; `None` keeps the metrics of runs.
        now: The end of a run that has no end time.
        fork_server: The memory of the agent's fork server, bytes; `None` for no such server.
    """
    samples = _read(path)
    if status is not None:
        success = samples.get("localpuppet_last_success_timestamp_seconds")
        attempt = _of(samples, _ATTEMPT)
        if status.good:
            attempt |= dict.fromkeys(_of(samples, _REFUSED), "0")
        samples = {**dict(_of_run(status, now)), **attempt, **_of(samples, _OVERDUE)}
        if status.good:
            success = samples["localpuppet_last_run_timestamp_seconds"]
        if success is not None:
            samples["localpuppet_last_success_timestamp_seconds"] = success
    for key in _of(samples, "localpuppet_rolled_back"):
        del samples[key]
    if rollback is not None:
        labels = f'release="{rollback.release}",input_release="{rollback.input_release}"'
        samples[f"localpuppet_rolled_back{{{labels}}}"] = "1"
    samples["localpuppet_holds"] = str(holds)
    if fork_server is not None:
        samples["localpuppet_fork_server_resident_memory_bytes"] = str(fork_server)
    write_durably(path, show_samples(samples, _HELP).encode(), mode=0o644)


def add_attempt(path: Path, attempt: "Attempt") -> None:
    """Add a refused apply to the textfile; the metrics of runs stay."""
    samples = _read(path)
    for key in _of(samples, _ATTEMPT):
        del samples[key]
    at = parse_time(attempt.at).timestamp()
    labels = f'release="{attempt.release}",refusal="{attempt.refusal}"'
    samples["localpuppet_last_attempt_timestamp_seconds"] = f"{at:.3f}"
    samples[f"{_REFUSED}{{{labels}}}"] = "1"
    write_durably(path, show_samples(samples, _HELP).encode(), mode=0o644)


def note_confirmation(path: Path, *, late: bool) -> None:
    """Set the metric of a deployed release that waits too long for its confirmation."""
    samples = _read(path)
    if samples.get(_OVERDUE, "0") != str(int(late)):
        samples[_OVERDUE] = str(int(late))
        write_durably(path, show_samples(samples, _HELP).encode(), mode=0o644)


def _read(path: Path) -> dict[str, str]:
    try:
        return parse_samples(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError):
        return {}


def _of(samples: dict[str, str], prefix: str) -> dict[str, str]:
    return {key: value for key, value in samples.items() if key.startswith(prefix)}


def _of_run(status: Status, now: datetime) -> Iterator[tuple[str, str]]:
    ended = parse_time(status.finished_at) if status.finished_at else now
    yield "localpuppet_last_run_timestamp_seconds", f"{ended.timestamp():.3f}"
    for outcome in Outcome:
        value = str(int(outcome is status.outcome))
        yield f'localpuppet_last_run_outcome{{outcome="{outcome}"}}', value
    yield "localpuppet_last_run_success", str(int(status.succeeded))
    yield "localpuppet_last_run_noop", str(int(status.noop))
    yield "localpuppet_last_run_work_tree", str(int(bool(status.work_tree)))
    if status.warm or status.cold_reason:
        yield "localpuppet_last_run_warm", str(int(status.warm))
    yield "localpuppet_last_run_duration_seconds", f"{status.seconds or 0:.3f}"
    for phase, seconds in (status.puppet_seconds or {}).items():
        if re.fullmatch(r"\w+", phase):
            yield f'localpuppet_last_run_phase_seconds{{phase="{phase}"}}', f"{seconds:.6f}"
    if status.resources is not None:
        for state in ("total", "changed", "failed", "skipped", "out_of_sync"):
            count = getattr(status.resources, state)
            yield f'localpuppet_last_run_resources{{state="{state}"}}', str(count)
