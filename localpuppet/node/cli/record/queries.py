"""Formats the queries of a run about other nodes, for `why` and `report`."""

from collections.abc import Sequence

import click

from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.times import show_duration
from localpuppet.node.cli import render
from localpuppet.node.runs.query_record import RecordedQuery

SHOWN = 5


def lines(queries: Sequence[RecordedQuery]) -> str:
    """Return a paragraph with its heading, or empty text without queries."""
    if not queries:
        return ""
    shown = [click.style("Queries", dim=True)]
    for query in queries:
        shown.append(f"  {one_line(query.text)}")
        shown.append(render.hanging("    ", _answer(query)))
    return "\n".join(shown)


def _answer(query: RecordedQuery) -> str:
    if query.digest is None:
        return click.style(f"could not ask: {render.user_text(query.reason)}", fg="red")
    names = ", ".join(query.names[:SHOWN])
    more = f" and {len(query.names) - SHOWN} more" if len(query.names) > SHOWN else ""
    answer = f"{render.counted(len(query.names), 'node')}: {names}{more}" if names else "no node"
    age = "" if not query.age or query.age < 1 else f"; {show_duration(query.age)} old"
    return f"{answer} (revision {query.revision}{age})"
