"""The deadline of a rollout: how people write it, and which node runs would exceed it.

Forms:

    2026-11-22T06:00+01:00
    2026-11-22 06:00 Europe/Berlin
    06:00 Europe/Berlin               the next time that clocks there show it
"""

import re
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.times import show_duration
from localpuppet.rollout.execution.events import NodeRun
from localpuppet.rollout.execution.state import RolloutState

_LOCAL = re.compile(
    r"(?:([0-9]{4}-[0-9]{2}-[0-9]{2})[ T])?([0-9]{1,2}:[0-9]{2}) +([A-Za-z0-9_+/-]{1,64})\Z"
)
_HINT = "write it with a zone: 2026-11-22T06:00+01:00, or '06:00 Europe/Berlin'"


def parse_until(text: str, *, now: datetime, where: str) -> datetime:
    """Parse a deadline and return it in UTC.

    If clocks show the time twice because they are set back, the earlier one counts.

    Raises:
        InvalidInputError: It is not a time, has no zone, is skipped by clocks, or is in the past.
    """
    end = _parse(text, now=now, where=where)
    if end <= now:
        raise InvalidInputError("is in the past", where=where)
    return end


def _parse(text: str, *, now: datetime, where: str) -> datetime:
    local = _LOCAL.match(text)
    if local is None:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError as error:
            raise InvalidInputError("is not a time", where=where, hint=_HINT) from error
        if moment.tzinfo is None:
            raise InvalidInputError("has no time zone", where=where, hint=_HINT)
        return moment.astimezone(UTC)
    date, time, name = local.groups()
    try:
        zone = ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidInputError(
            f"the zone {name!r} is unknown on this machine", where=where, hint=_HINT
        ) from error
    today = now.astimezone(zone).date().isoformat()
    end = _moment(date or today, time, zone, where)
    if date is None and end <= now:
        tomorrow = now.astimezone(zone).date() + timedelta(days=1)
        end = _moment(tomorrow.isoformat(), time, zone, where)
    return end


def _moment(date: str, time: str, zone: ZoneInfo, where: str) -> datetime:
    try:
        wall = datetime.fromisoformat(f"{date}T{time:0>5}").replace(tzinfo=zone)
    except ValueError as error:
        raise InvalidInputError("is not a time", where=where, hint=_HINT) from error
    moment = wall.astimezone(UTC)
    if moment.astimezone(zone).replace(tzinfo=None) != wall.replace(tzinfo=None):
        raise InvalidInputError(
            f"{date} {time} does not exist in {zone.key}: clocks are set forward then", where=where
        )
    return moment


def late(state: RolloutState, turns: Collection[NodeRun], now: datetime) -> str:
    """Return why node runs may not start any more, one line; empty if they may.

    They are late if the longest of their nodes' last good runs, started now, would end after the
    deadline. A node without a good run counts as zero.
    """
    until = state.until
    if until is None or not turns:
        return ""
    shown = until.strftime("%Y-%m-%d %H:%M UTC")
    if now >= until:
        return f"it is {shown}"
    last = {turn.node: state.durations.get(turn.node, (0.0,))[0] for turn in turns}
    node = max(sorted(last), key=last.__getitem__)
    if now + timedelta(seconds=last[node]) <= until:
        return ""
    return (
        f"the last run of {node} took {show_duration(last[node])}, which is longer than to {shown}"
    )
