"""What a run asked about other nodes, and what they changed, as `why` and `report` show it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from localpuppet.base.errors import StateError
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.times import show_duration
from localpuppet.fleet.triggers.cause import Cause
from localpuppet.fleet.triggers.change import Change, How
from localpuppet.node.cli import render
from localpuppet.node.runs.query_record import RecordedQuery

SHOWN = 5
_BECAME = {
    How.JOINED: "is in the answer now",
    How.LEFT: "is not in the answer any more",
    How.CHANGED: "is told of otherwise",
    How.ELSEWHERE: "says something else of itself",
}


def lines(queries: Sequence[RecordedQuery]) -> str:
    """Return a paragraph with its heading, or nothing where nothing was asked."""
    if not queries:
        return ""
    shown = [click.style("Queries", dim=True)]
    for query in queries:
        shown.append(f"  {one_line(query.text)}")
        shown.append(render.hanging("    ", _answer(query)))
    return "\n".join(shown)


def changes(request: Mapping[str, Any]) -> str:
    """Return which nodes changed which answers, so that a run followed; nothing where none did.

    Args:
        request: `request.json` of the run.
    """
    by_question: dict[str, list[str]] = {}
    for node, change in _changes(request):
        facts = ", ".join(map(render.user_text, change.facts))
        said = f"{node}: {facts or _BECAME[change.how]}"
        by_question.setdefault(change.question, []).append(said)
    if not by_question:
        return ""
    shown = [click.style("Changed", dim=True)]
    for question, lines_of in by_question.items():
        shown.append(f"  {render.user_text(question)}")
        shown += [render.hanging("    ", line) for line in lines_of]
    return "\n".join(shown)


def _changes(request: Mapping[str, Any]) -> Iterator[tuple[str, Change]]:
    for raw in (request.get("causes") or {}).get("causes") or ():
        try:
            cause = Cause.from_dict(raw)
        except StateError:
            continue  # of another version
        for change in cause.changes:
            yield str(cause.path[-1]), change


def _answer(query: RecordedQuery) -> str:
    if query.digest is None:
        return click.style(f"could not ask: {render.user_text(query.reason)}", fg="red")
    names = ", ".join(query.names[:SHOWN])
    more = f" and {len(query.names) - SHOWN} more" if len(query.names) > SHOWN else ""
    found = f"{render.counted(len(query.names), 'node')}: {names}{more}" if names else "no node"
    age = "" if not query.age or query.age < 1 else f"; {show_duration(query.age)} old"
    return f"{found} (revision {query.revision}{age})"
