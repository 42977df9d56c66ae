"""Renders replies to requests as the commands render the same data of this node.

If a node of another version sends another form, its fields are shown one by one.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from localpuppet.base.errors import InvalidInputError, StateError
from localpuppet.base.formats.records import from_record
from localpuppet.base.formats.text import folded
from localpuppet.base.formats.times import show_duration
from localpuppet.fleet.inventory.run_end import RunEnd
from localpuppet.node.cli import render, render_run
from localpuppet.node.cli.render_resources import sections
from localpuppet.node.runs.hold import Hold
from localpuppet.node.runs.run import Status
from localpuppet.node.runs.run_replies import RunReport

SHOWN = 20  # resources of each kind
MARGIN = 2  # columns before each line below a node's name


def shown_reply(action: str, result: Mapping[str, Any], now: datetime) -> tuple[str, str]:
    """Return a word for the result, and the lines below it, if any.

    Args:
        action: The requested action.
        result: The result in the reply.
        now: The time.
    """
    try:
        return _shown_reply(action, result, now)
    except (AttributeError, KeyError, TypeError, ValueError, StateError, InvalidInputError):
        return render.word("ok"), render.mapping_lines(result)


def _shown_reply(action: str, result: Mapping[str, Any], now: datetime) -> tuple[str, str]:
    if action == "runonce" and result["accepted"] is True:
        holds = result.get("holds") or []  # an earlier version does not send them
        return "accepted, runs when the hold ends" if holds else "accepted", _left(holds)
    if action == "disable":
        return f"on hold: {_hold(result['hold'])}", ""
    if action == "enable":
        ended = [f"ended: {_hold(raw)}" for raw in result["ended"]]
        return "; ".join(ended) or "you had no hold here", _left(result["holds"])
    if action == "last_run_summary":
        if not result:
            return "no run yet", ""
        return render.word("ok"), render.pairs(
            render_run.rows(Status.from_dict(result), now), MARGIN
        )
    if action == "log":
        return render.word("ok"), _log(result)
    if action == "report":
        report = from_record(RunReport, result)
        status = Status.from_dict(report.run)
        return render.word(str(status.outcome or status.state)), _report(report, now)
    return _state(result, now)


def _log(reply: Mapping[str, Any]) -> str:
    lines = [render.puppet_line(render.user_text(line)) for line in folded(reply["lines"])]
    if reply["before"]:
        lines.insert(0, f"… {render.counted(int(reply['before']), 'line')} before this")
    if reply["left_out"]:
        lines.append(f"left out: {render.counted(int(reply['left_out']), 'line')} of diffs")
    return "\n".join([f"run {render.user_text(reply['run'])}", *lines])


def _report(reply: RunReport, now: datetime) -> str:
    resources = [*reply.failed, *reply.changed, *reply.would_change, *reply.skipped]
    parts = [render.pairs(render_run.rows(Status.from_dict(reply.run), now), MARGIN)]
    if not reply.report:
        parts.append("no report of this run: Puppet wrote none")
    parts += sections(resources, SHOWN, margin=MARGIN)
    if reply.left_out:
        more = render.counted(reply.left_out, "resource")
        parts.append(f"{more} more: there was no room for them")
    return "\n".join(parts)


def _state(reply: Mapping[str, Any], now: datetime) -> tuple[str, str]:
    last = None if reply["last_run"] is None else from_record(RunEnd, reply["last_run"])
    rows = [("Cause", render.user_text(reply["cause"] or ""))]
    if reply["waiting"]:
        rows.append(("Waiting", render.counted(int(reply["waiting"]), "cause")))
    if reply.get("blocked"):
        rows.append(("Blocked", render.user_text(reply["blocked"])))
    if last is not None:
        ended = show_duration(max(0.0, now.timestamp() - last.finished_at))
        noop = " (noop)" if last.noop else ""
        outcome = render.word(str(last.outcome or last.kind))
        rows += [
            ("Last run", f"{outcome}{noop}, {ended} ago  [run {last.run}]"),
            ("Reason", last.reason),
            ("Release", last.release),
            ("Tree", render.user_text(reply["release_digest"] or "")),
        ]
    assignment = reply.get("assignment")
    if assignment:
        by = f"by {assignment['by']} at {render_run.moment(assignment['at'])}"
        serial = f"(serial {assignment['serial']})"
        rows.append(("Assigned", render.user_text(f"{assignment['release']} {by} {serial}")))
    confirmation = reply.get("confirmation")
    if confirmation:
        rows.append(("Confirmation", render.user_text(confirmation_line(confirmation))))
    rollback = reply.get("rollback")
    if rollback:
        by = f"by {rollback['user']} at {render_run.moment(rollback['since'])}"
        text = f"rolled back to {rollback['release']} {by}"
        if last is None or last.release != rollback["release"]:
            text += ", not applied yet"
        input_release = f"the input names {rollback['input_release']}"
        rows.append(("Rollback", render.user_text(f"{text}; {input_release}")))
    rows.append(("Version", render.user_text(reply["version"])))
    lines = [render.pairs(rows, MARGIN), _left(reply["holds"])]
    return render.word(render.user_text(reply["state"])), "\n".join(filter(None, lines))


def confirmation_line(confirmation: Mapping[str, Any]) -> str:
    """Return the state of a deployed release's confirmation, as a node reports it."""
    reason = f" ({confirmation['reason']})" if confirmation["reason"] else ""
    return f"{confirmation['release']} {confirmation['stage']}{reason}"


def _left(holds: list[Mapping[str, Any]]) -> str:
    return render.pairs([("On hold", _hold(raw)) for raw in holds], MARGIN)


def _hold(raw: Mapping[str, Any]) -> str:
    return render.user_text(Hold.from_dict(raw))
