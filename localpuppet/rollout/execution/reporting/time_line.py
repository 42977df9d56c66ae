"""Bars on a time line as SVG: when each node ran, relative to the whole rollout.

The elements have classes and no styles, so that a strict Content-Security-Policy allows them.
"""

from datetime import datetime
from xml.etree import ElementTree as Tree

from localpuppet.base.value import Value
from localpuppet.rollout.execution.reporting.view import NodeRunView, RolloutView, tone_of

WIDTH = 1000  # of the whole line, in units of the picture
NARROWEST = 6  # the least width of a bar


class TimeLine(Value):
    """The time from the start of a rollout to its end, or to now."""

    begin: datetime
    end: datetime

    @classmethod
    def of(cls, view: RolloutView, now: datetime) -> "TimeLine":
        """Return the time line of a rollout."""
        groups = (*view.groups, *([] if view.rollback is None else [view.rollback]))
        ends = [run.ended for group in groups for run in group.runs if run.ended is not None]
        begins = [run.started for group in groups for run in group.runs if run.started is not None]
        last = now if view.report.state.over is None else max(ends, default=now)
        begin = min(begins, default=last)
        return cls(begin=begin, end=max(last, begin))

    def draw(self, run: NodeRunView) -> Tree.Element:
        """Return a picture with a bar for a run; without a bar if it has not started.

        The picture is hidden from screen readers: the table around it has the times as text.
        """
        root = Tree.Element(
            "svg",
            {
                "class": "bars",
                "viewBox": f"0 0 {WIDTH} 10",
                "preserveAspectRatio": "none",
                "aria-hidden": "true",
            },
        )
        if run.started is not None:
            left = min(self._at(run.started), WIDTH - NARROWEST)
            right = self._at(self.end if run.ended is None else run.ended)
            width = min(max(right - left, NARROWEST), WIDTH - left)
            tone = f"tone-{tone_of(run.state)}"
            bar = {"class": tone, "x": f"{left:g}", "width": f"{width:g}", "height": "10"}
            Tree.SubElement(root, "rect", bar)
        return root

    def draw_text(self, run: NodeRunView) -> str:
        """Return the picture of one run as the text of an SVG element."""
        return Tree.tostring(self.draw(run), encoding="unicode", short_empty_elements=False)

    def _at(self, moment: datetime) -> float:
        """Return the place of a time on the line."""
        whole = max((self.end - self.begin).total_seconds(), 0.001)
        part = (moment - self.begin).total_seconds() / whole
        return round(min(max(part, 0.0), 1.0) * WIDTH, 1)
