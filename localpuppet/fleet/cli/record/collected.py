"""Shows, for `why` and `report`, what a run exported and collected."""

from collections.abc import Sequence

import click

from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.times import show_duration
from localpuppet.fleet.exports.recording import CollectorRecord
from localpuppet.fleet.exports.resource import UNREPORTED
from localpuppet.node.cli import render

SHOWN = 5


def lines(collected: Sequence[CollectorRecord], exported: int) -> str:
    """Return a paragraph with its heading; empty if the run exported and collected nothing.

    Args:
        collected: The run's collectors.
        exported: How many resources its catalog exports.
    """
    shown = [] if not exported else [f"  exports {render.counted(exported, 'resource')}"]
    shown += collectors(collected)
    return "\n".join([click.style("Exported resources", dim=True), *shown]) if shown else ""


def would_take(collected: Sequence[CollectorRecord]) -> str:
    """Return a paragraph with its heading on what collectors would get now; empty for none."""
    heading = click.style("The collectors of the newest run would get now", dim=True)
    return "\n".join([heading, *collectors(collected)]) if collected else ""


def collectors(collected: Sequence[CollectorRecord]) -> list[str]:
    """Return lines about collectors: their resources by node, and what they left out."""
    shown = []
    for collector in collected:
        shown.append(f"  {one_line(collector.text)}")
        shown.append(render.hanging("    ", _answer(collector)))
        dropped = sorted({name for got in collector.resources for name in got.dropped} - UNREPORTED)
        if dropped:
            remark = f"guarded, does not count of them: {', '.join(dropped)}"
            shown.append(render.hanging("    ", remark))
        shown += [
            render.hanging(
                "    ", f"left out: {one_line(left.resource)} of {left.node}: {left.reason}"
            )
            for left in collector.left_out[:SHOWN]
        ]
        more = len(collector.left_out[SHOWN:]) + collector.more_left_out
        if more:
            shown.append(f"    and {more} more are left out")
    return shown


def _answer(record: CollectorRecord) -> str:
    if record.digest is None:
        return click.style(f"none: {render.user_text(record.reason)}", fg="red")
    more = f" and {len(record.nodes) - SHOWN} more" if len(record.nodes) > SHOWN else ""
    of = f" of {', '.join(record.nodes[:SHOWN])}{more}" if record.nodes else ""
    answer = f"{render.counted(len(record.resources), 'resource')}{of}"
    if record.revision is None:
        return answer
    age = "" if not record.age or record.age < 1 else f"; {show_duration(record.age)} old"
    return f"{answer} (revision {record.revision}{age})"
