"""Formats runs for people: their state, their result, their times.

Separate from `render` because the imports cost 5 ms, and most verbs show no runs.
"""

from datetime import datetime
from typing import TYPE_CHECKING

import click

from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.times import parse_time, show_duration
from localpuppet.node.cli import render
from localpuppet.node.runs.run import NOTHING_APPLIED, Outcome, RunState, Status

if TYPE_CHECKING:
    from localpuppet.node.puppet.report import Resources
    from localpuppet.node.runs.run import Attempt

# The columns of a list of runs.
HISTORY = ("RUN", "STARTED (UTC)", "TOOK", "OUTCOME", "RELEASE", "DETAILS")


def moment(text: str | None) -> str:
    """Return a record's time for people: UTC, to the second; `?` for a damaged one."""
    if not text:
        return ""
    try:
        return parse_time(text).strftime("%Y-%m-%d %H:%M:%S UTC")
    except ValueError:
        return "?"


def ago(text: str, now: datetime) -> str:
    """Return how long ago a record's time was."""
    return f"{show_duration(round(max(0.0, (now - parse_time(text)).total_seconds())))} ago"


def counts(status: Status) -> str:
    """Return the resources of a run in one phrase."""
    resources = status.resources
    if resources is None:
        return ""
    whole = status.outcome in (Outcome.UNCHANGED, Outcome.CHANGED, Outcome.FAILED)
    return resource_counts(resources, reached="" if whole else " reached", noop=status.noop_pending)


def resource_counts(resources: "Resources", *, reached: str = "", noop: bool = False) -> str:
    """Return counts of resources in one phrase.

    Args:
        reached: Text behind the total.
        noop: Whether to say how many would change.
    """
    parts = [f"{render.counted(resources.total, 'resource')}{reached}"]
    for label, count in (
        ("changed", resources.changed),
        ("failed", resources.failed),
        ("skipped", resources.skipped),
    ):
        if count:
            parts.append(f"{count} {label}")
    if noop:
        parts.append(f"{resources.out_of_sync} would change")
    return ", ".join(parts)


def result(status: Status) -> str:
    """Return the last line of a run's output."""
    outcome = status.outcome or Outcome.INTERRUPTED
    details = [outcome.replace("_", " ")]
    if status.noop:
        details.append("noop")
    details += filter(None, [show_part(status), counts(status), took(status)])
    # Puppet's error is the line above.
    text = NOTHING_APPLIED if status.reason.startswith(NOTHING_APPLIED) else status.reason
    why = f": {one_line(text)}" if text and not outcome.success else ""
    line = f"# {', '.join(details)}{why}"
    color = "yellow" if status.noop_pending else render.COLORS[outcome]
    return f"{click.style(line, fg=color)}  [run {status.id}]"


def reason(status: Status) -> str:
    """Return why a run ended as it did; empty for a noop run, where `counts` says it."""
    return "" if status.noop_pending else render.user_text(status.reason)


def show_part(status: Status) -> str:
    """Return the part of the catalog that a run applied, `only --tags web`; empty for all."""
    return f"only {render.user_text(status.part)}" if status.part else ""


def took(status: Status) -> str:
    """Return the duration of a run; empty until it is known."""
    return show_duration(status.seconds) if status.seconds else ""


def refused(attempt: "Attempt", now: datetime) -> str:
    """Return the line of an attempt: `refused 3m ago: …`."""
    times = f" {attempt.times} times, last" if attempt.times > 1 else ""
    noop = " (noop)" if attempt.noop else ""
    return f"refused{noop}{times} {ago(attempt.at, now)}: {render.user_text(attempt.reason)}"


def state_word(status: Status) -> str:
    if status.state is RunState.FINISHED and status.outcome is not None:
        return str(status.outcome)
    return str(status.state)


def code(status: Status, *, noop: bool = False) -> tuple[str, str]:
    """Return what a run applied, labelled: a release or a work tree.

    Args:
        noop: Whether to add that it changed nothing.
    """
    marks = filter(None, ["noop" if noop and status.noop else "", show_part(status)])
    more = "".join(f" ({mark})" for mark in marks)
    if status.work_tree:
        return "Work tree", f"{render.user_text(status.work_tree)}, not a release{more}"
    return "Release", render.user_text(status.release) + more


def applied(status: Status, now: datetime) -> str:
    """Return what the last real run before noop runs applied, and how it ended."""
    ended = f", {ago(status.finished_at, now)}" if status.finished_at else ""
    return f"{code(status)[1]}: {render.word(state_word(status))}{ended}  [run {status.id}]"


def _start(status: Status) -> str:
    """Return how Puppet was started, if that is unusual."""
    if not status.puppet_started:
        return "was not started"
    if status.cold_reason:
        return f"started cold: {render.user_text(status.cold_reason)}"
    return "started warm" if status.warm else ""


def next_command(status: Status) -> str:
    """Return the command that shows more of a failed run; empty for any other run."""
    if status.outcome is not Outcome.FAILED and status.outcome is not Outcome.TIMED_OUT:
        return ""
    if status.resources is not None:
        return f"'localpuppet report {status.id}' shows each failed resource"
    if status.puppet_started:
        return f"'localpuppet logs {status.id}' shows Puppet's output"
    return "'localpuppet check' checks input, release and Puppet"


def rows(status: Status, now: datetime) -> list[tuple[str, str]]:
    """Return the labelled rows of a run for `render.pairs`."""
    ended = moment(status.finished_at)
    if status.finished_at:
        ended += f" ({ago(status.finished_at, now)})"
    started = moment(status.started_at)
    if not status.finished_at:
        started += f" ({ago(status.started_at, now)})"
    length = took(status)
    return [
        ("Run", status.id),
        code(status, noop=True),
        ("State", render.word(state_word(status))),
        ("Reason", reason(status)),
        ("Started", started),
        ("Ended", f"{ended}, took {length}" if length else ended),
        ("Repaired", render.user_text(status.repaired)),
        ("Puppet", _start(status)),
        ("Catalog", counts(status)),
    ]
