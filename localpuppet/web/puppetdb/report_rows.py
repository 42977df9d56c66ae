"""What run summaries say as parts of reports, what only nodes have, and the hash of a report.

It has the form of the SHA-1 digest that PuppetDB uses. 19 digits are the id of the run, the digits
that differ most first; 21 are of a digest of the node's name.

- Metrics count resources. An event is a resource that failed, changed, would change or was skipped.
- A report that a node should have sent and a refused apply have no record on the node: their log is
  what their summary says. Other logs are asked of the node by a signed request; the first line of a
  failed run's log is the reason from its summary.
"""

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import lru_cache
from itertools import chain, islice

from localpuppet.base.errors import LocalpuppetError, UnavailableError
from localpuppet.base.formats.names import NodeName, RunId
from localpuppet.base.formats.strict_json import compact, loads_again
from localpuppet.base.formats.times import show_epoch
from localpuppet.base.formats.values import Json
from localpuppet.base.value import Value
from localpuppet.fleet.history.history_records import DAY, RunCounts
from localpuppet.fleet.inventory.presence import NOT_TRUSTED, UNRESPONSIVE, NodeRow
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.node.puppet.fault import LEFT_OUT
from localpuppet.node.puppet.resources import ResourceResult
from localpuppet.web.dashboard.run_table import MILLI, MOMENTS, RunRow, number_of, run_of

_HASH = re.compile(r"([0-9a-f]{19})([0-9a-f]{21})\Z")
_NODE_DIGITS = 21
# The first number that is no id: of the year 10000.
_END = 2_932_897 * MOMENTS


def report_hash(node: str, run: str) -> str:
    return hash_of(node, number_of(RunId(run)))


def hash_of(node: str, number: int) -> str:
    """Return the hash of a report, see `run_table.number_of`."""
    return f"{number:019x}"[::-1] + node_digits(node)


def parse_hash(text: object) -> tuple[RunId, str] | None:
    """Return the run's id and the digits of its node; `None` if no run has this hash."""
    match = _HASH.match(text) if isinstance(text, str) else None
    if match is None:
        return None
    number = int(match[1][::-1], 16)
    return (run_of(*divmod(number, MOMENTS)), match[2]) if number < _END else None


@lru_cache(maxsize=32_768)
def node_digits(node: str) -> str:
    """Return the digits of a node in the hashes of its reports."""
    return hashlib.sha256(node.encode()).hexdigest()[:_NODE_DIGITS]


PUPPET = "Puppet"
FAILED = "failed"
STATUS = {
    **dict.fromkeys(Kind, FAILED),
    **dict.fromkeys((Kind.CHANGED, Kind.CORRECTED), "changed"),
    **dict.fromkeys((Kind.UNCHANGED, Kind.NOOP_PENDING, Kind.NOOP_CLEAN), "unchanged"),
}


def metrics(seconds: int | None, counts: RunCounts | None) -> list[Json]:
    """Return the metrics of a report, without those that only the node has."""
    if counts is None:
        return []
    numbers: dict[str, dict[str, int | None]] = {
        "resources": {
            "total": counts.total,
            "changed": counts.changed,
            "failed": counts.failed,
            "skipped": counts.skipped,
            "out_of_sync": counts.out_of_sync,
            "corrective_change": counts.corrective,
        },
        "time": {"total": seconds},
        "changes": {"total": counts.changed},
        "events": _events(counts),
    }
    return [
        {"category": category, "name": name, "value": value}
        for category, named in numbers.items()
        for name, value in named.items()
        if value is not None
    ]


def log_of(run: RunRow) -> list[dict[str, Json]]:
    """Return what the summary of a run says, as lines of its log: a failed one has an error.

    The reason is that of the first resource that failed; the others have a line each.
    """
    lines, is_failed = [], STATUS[run.outcome] == FAILED
    if is_failed:
        text = run.reason or f"the run ended as: {run.outcome}"
        failed = [item for item in run.resources if item.status is ResourceResult.FAILED]
        if not failed:
            lines.append(log_line("err", text, time=show_epoch(run.finished_at)))
        for item in failed:
            line = log_line(
                "err", text, time=show_epoch(run.finished_at), source=item.resource or PUPPET
            )
            lines.append({**line, "file": item.file or None, "line": item.line})
            text = "failed, too"
    if run.seconds is not None or not is_failed:  # without a summary, there may be no run
        lines.append(log_line("notice", _ended(run), time=show_epoch(run.finished_at)))
    return lines


def log_line(level: str, message: str, *, time: str, source: str = PUPPET) -> dict[str, Json]:
    """Return a line of a report's log."""
    return {
        "level": level,
        "message": message,
        "source": source,
        "tags": [level],
        "time": time,
        "file": None,
        "line": None,
    }


def _ended(run: RunRow) -> str:
    release = run.release or "an unknown release"
    if run.outcome is Kind.REFUSED:
        return f"localpuppet refused to apply {release}"
    seconds = "" if run.seconds is None else f" in {run.seconds} s"
    cause = f", cause: {run.cause}" if run.cause else ""
    return f"localpuppet ended the run of {release}{seconds}: {run.outcome}{cause}"


def shown_title(title: str, place: str) -> str:
    """Return a title; one that stays on the node has its place, so that two are not one subject."""
    return f"{title} ({place})" if title == LEFT_OUT and place else title


def _events(counts: RunCounts) -> dict[str, int | None]:
    noop = max(0, counts.out_of_sync - counts.changed - counts.failed)
    return {
        "success": counts.changed,
        "failure": counts.failed,
        "noop": noop,
        "total": counts.changed + counts.failed + noop,
    }


def missing_report(
    row: NodeRow, ended: int | None, last_outcome: str | None, *, now: float
) -> RunRow | None:
    """Return the report that a node should have sent; `None` if its newest one is true.

    PuppetDB keeps the last status of a node that no longer reports, so a dead node looks unchanged.
    Here a node that is overdue, unresponsive or failed has one more report, the newest: `failed`,
    with the reason in its log. The report has the time from which it is missing, so its hash is
    stable. It ends when the node runs, and is not stored.

    `ended` is the end of its newest report in the memory, milliseconds since 1970.
    """
    failed = last_outcome is not None and STATUS[Kind(last_outcome)] == FAILED
    missing = _missing(row, ended, failed=failed, now=now)
    if missing is None:
        return None
    at, outcome, reason = missing
    if row.last is not None and row.run and at == row.finished_at:
        return RunRow.of_end(row.node, row.last)  # the memory has it in a second
    ended = max(round(at * MILLI), 0 if ended is None else ended + 1)
    day, rest = divmod(ended, round(DAY) * MILLI)
    return RunRow(
        node=row.node,
        run=run_of(day, rest * MILLI << 16),
        finished_at=ended / MILLI,
        outcome=outcome,
        release=row.release,
        reason=reason,
    )


def _missing(
    row: NodeRow, ended: int | None, *, failed: bool, now: float
) -> tuple[float, Kind, str] | None:
    """Return from when a report is missing, its result and the reason."""
    seen = row.received_at
    if row.state == NOT_TRUSTED and seen is not None:
        since = seen if ended is None else ended / MILLI  # each status has another time
        return since, Kind.INTERRUPTED, f"the node's status is not trusted: {row.reason}"
    if row.state == UNRESPONSIVE and seen is not None:
        return (
            seen,
            Kind.INTERRUPTED,
            f"the node is unresponsive: its agent was last online at {show_epoch(seen)}",
        )
    if row.late(now) and row.late_from is not None:
        reason = f"the node is overdue: its last run ended at {show_epoch(row.finished_at or 0.0)}"
        return row.late_from, Kind.INTERRUPTED, reason
    if row.outcome.bad and row.finished_at is not None:
        known = ended is not None and (failed or ended >= row.finished_at * MILLI)
        return None if known else (row.finished_at, row.outcome, row.reason or row.error)
    return None


class FoundReport(Value):
    """A report, which may be one that the node should have sent; an online node can be asked."""

    run: RunRow
    is_missing: bool
    is_online: bool


# Seconds for the node.
PATIENCE = 10.0
# Puppet's words for the levels of messages.
_WORDS = ("Debug", "Info", "Notice", "Warning", "Error", "Alert", "Emerg", "Crit")
_LEVELS = {word: word.lower() for word in _WORDS} | {"Error": "err"}
_MESSAGE = re.compile(rf"({'|'.join(_WORDS)}): (?:(/\S.*?\](?:/[\w.-]+)?): )?(.*)", re.DOTALL)
AskLog = Callable[[NodeName, RunId], Awaitable[Mapping[str, Json]]]


async def part_of_report(
    report: str, part: str, *, find: Callable[[str], FoundReport | None], ask: AskLog
) -> Json:
    """Return `metrics` or `logs` of a report; `None` for an unknown hash.

    `find` returns a report, in a thread; `ask` asks a node for the end of a run's log, see
    `run_replies.log_reply`. A node that cannot be reached is an `UnavailableError`.
    """
    run_or_error = await asyncio.to_thread(find, report)
    if run_or_error is None:
        return None
    run = run_or_error.run
    if part == "metrics":
        return metrics(run.seconds, run.counts)
    if run.outcome is Kind.REFUSED or run_or_error.is_missing:
        return [*log_of(run)]
    if not run_or_error.is_online:
        raise UnavailableError("is unresponsive, and only it has the log", where=run.node)
    try:
        async with asyncio.timeout(PATIENCE):
            detail = await ask(NodeName.parse(run.node), RunId(run.run))
    except TimeoutError as error:
        text = f"sent no log within {PATIENCE:g} s"
        raise UnavailableError(text, where=run.node) from error
    except LocalpuppetError as error:
        raise UnavailableError(f"cannot read the log: {error}", where=run.node) from error
    reasons = [item for item in log_of(run) if item["level"] == "err"]
    return [*reasons, *_lines(detail, time=show_epoch(run.finished_at))]


def with_node_log(rows: Iterator[str], read: Callable[[str], Json]) -> Iterator[str]:
    """Yield reports as JSON texts; a single one has the log of its node, which `read` returns.

    If the node's log cannot be read, a warning says so after the lines of the summary.
    """
    some = list(islice(rows, 2))
    if len(some) != 1:
        yield from chain(some, rows)
        return
    row = loads_again(some[0].encode())
    logs = row["logs"]
    try:
        lines = read(row["hash"])
    except (LocalpuppetError, TimeoutError) as error:
        text = f"the node's log cannot be read: {str(error) or 'it did not answer in time'}"
        lines = [*logs["data"], log_line("warning", text, time=row["end_time"])]
    yield compact({**row, "logs": {**logs, "data": lines}})


def _lines(detail: Mapping[str, Json], *, time: str) -> Iterator[Json]:
    """Yield lines of Puppet's log; a line without a level belongs to the message before it."""
    from localpuppet.web.dashboard.inventory_questions import LogOrigin, RunLogTail

    log = RunLogTail.read(detail)
    messages: list[str] = []
    for line in log.lines:
        if messages and not _MESSAGE.match(line):
            messages[-1] += f"\n{line}"
        else:
            messages.append(line)
    for message in messages:
        match = _MESSAGE.match(message)
        origin = log.origins.get(message.partition("\n")[0], LogOrigin())
        level, source, text = ("Notice", None, message) if match is None else match.groups()
        shown = log_line(_LEVELS[level], text, time=origin.time or time, source=source or PUPPET)
        yield {**shown, "file": origin.file or None, "line": origin.line}
