"""The parts of a report that only its node has: asked of the node by a signed request.

- A report that a node should have sent and a refused apply have no record on the node: their log is
  what their summary says.
- The first line of a failed run's log is the reason from its summary.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from itertools import chain, islice

from localpuppet.base.errors import LocalpuppetError, UnavailableError
from localpuppet.base.formats.names import NodeName, RunId
from localpuppet.base.formats.strict_json import compact, loads_again
from localpuppet.base.formats.times import show_epoch
from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.web.puppetdb.report_rows import PUPPET, log_line, log_of, metrics
from localpuppet.web.puppetdb.report_views import FoundReport

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

    Args:
        find: Returns a report, `None` for an unknown hash; called in a thread.
        ask: Asks a node for the end of a run's log; see `run_replies.log_reply`.

    Raises:
        UnavailableError: The node of the report cannot be reached.
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
    """Yield reports as JSON texts; a single one has the log of its node.

    If the node's log cannot be read, a warning says so after the lines of the summary.

    Args:
        read: Returns the log of a report by its hash; raises `LocalpuppetError` or `TimeoutError`.
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
