"""Files about a rollout: its report as one printable HTML page, and the Prometheus textfile.

The elements have classes and no styles, so that a strict Content-Security-Policy allows them.

The document is a tree of elements. Texts of nodes and people become one line each, and the
serializer escapes them.

It is a file beside `metrics.prom`, which node runs replace. The time of the last success is kept:
it is read from the previous file before that is replaced.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from xml.etree import ElementTree as Tree

from localpuppet.base.formats.prometheus import parse_samples, show_samples
from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.times import parse_time, show_duration
from localpuppet.base.machine.files import write_durably
from localpuppet.base.value import Value
from localpuppet.rollout.events import RolloutEnding
from localpuppet.rollout.rollout_report import PAUSED, RUNNING, RolloutReport, show_counts
from localpuppet.rollout.rollout_view import (
    GroupView,
    NodeRunView,
    RolloutView,
    show_moment,
    tone_of,
)
from localpuppet.rollout.state import ProgressState

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


POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = """
:root { color-scheme: light dark; --good: #1a7f37; --bad: #b42318; --warn: #8a5000;
  --active: #1f66b5; --quiet: #6a6a6a; }
@media (prefers-color-scheme: dark) { :root { --good: #5dd879; --bad: #ff8a80; --warn: #f0b455;
  --active: #7db5f3; --quiet: #a0a0a0; } }
body { font: 1rem/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem;
  padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; }
dt { color: var(--quiet); } dd { margin: 0; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .25rem .6rem .25rem 0;
  border-bottom: 1px solid #8885; overflow-wrap: break-word; }
td:last-child { overflow-wrap: anywhere; }
td.time { width: 25%; min-width: 6rem; }
.bars { display: block; width: 100%; height: .8rem; margin-top: .3rem;
  print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.tone-good { color: var(--good); fill: var(--good); }
.tone-bad { color: var(--bad); fill: var(--bad); }
.tone-warn { color: var(--warn); fill: var(--warn); }
.tone-active { color: var(--active); fill: var(--active); }
.quiet, .tone-quiet { color: var(--quiet); fill: var(--quiet); }
.slowest { font-weight: 600; }
@media print { body { margin: 0; max-width: none; } tr, h2 { break-inside: avoid; } }
"""


def page(report: RolloutReport, now: datetime) -> str:
    """Return the HTML file.

    Args:
        report: The rollout.
        now: The time, UTC.
    """
    began, view = report.state.began, RolloutView.of(report, now)
    root = Tree.Element("html", lang="en")
    head = Tree.SubElement(root, "head")
    Tree.SubElement(head, "meta", charset="utf-8")
    Tree.SubElement(head, "meta", {"http-equiv": "Content-Security-Policy", "content": POLICY})
    Tree.SubElement(head, "meta", name="viewport", content="width=device-width")
    _add(head, "title", f"Rollout {began.id}: {report.word}")
    _add(head, "style", _STYLE, raw=True)
    body = Tree.SubElement(Tree.SubElement(root, "body"), "main")
    _add(body, "h1", began.title or "Rollout")
    kind = f"tone-{tone_of(report.word)}"
    _add(body, "p", f"{report.word}{': ' if report.why else ''}{report.why}", kind)
    _pairs(body, _facts(view))
    if report.decisions:
        _add(body, "h2", "Decisions")
        _pairs(body, [(show_moment(parse_time(at)), what) for at, what in report.decisions])
    if report.state.seen:
        _add(body, "h2", "Not approved before")
        _pairs(body, _differences(report))
    line = TimeLine.of(view, now)
    for group in view.groups:
        _add(body, "h2", f"Group {group.number}: {group.state}")
        _runs(body, group, line)
    if view.rollback is not None:
        _add(body, "h2", f"Back to what they ran before: {view.rollback.state}")
        _runs(body, view.rollback, line)
    if report.state.predicted_changes:
        _add(body, "h2", "Would change")
        _pairs(body, _would_change(report))
    _add(body, "p", "The bars show when each node ran; the bold node ended last in its group.")
    return "<!doctype html>\n" + Tree.tostring(root, encoding="unicode", method="html") + "\n"


def _differences(report: RolloutReport) -> Iterable[tuple[str, str]]:
    for turn, difference in sorted(report.state.seen.items()):
        approved = report.state.approved.get(turn)
        by = f"approved by {approved.approved_by}" if approved else "not approved"
        changes = "; ".join(map(str, difference.others))
        yield turn.node, f"{difference.reason} ({by}){': ' if changes else ''}{changes}"


def _would_change(report: RolloutReport) -> Iterable[tuple[str, str]]:
    for node, expected in sorted(report.state.predicted_changes.items()):
        changes = "; ".join(map(str, expected.changes)) or "nothing"
        yield (
            node,
            f"{expected.release}: {changes if expected.whole else f'{expected.total} properties'}",
        )


def _facts(view: RolloutView) -> Iterable[tuple[str, str]]:
    yield "Rollout", view.report.state.began.id
    yield from view.facts()
    yield "Nodes", show_counts(view.counts)
    over = view.report.state.over
    if over is not None and over.still_held:
        yield "Still held", ", ".join(f"{node}: {why}" for node, why in over.still_held.items())
    if over is not None and over.held_for_investigation:
        yield "Kept on hold", ", ".join(over.held_for_investigation)


def _runs(parent: Tree.Element, group: GroupView, line: TimeLine) -> None:
    """Add a table with a row for each node of a group."""
    table = Tree.SubElement(parent, "table")
    header = Tree.SubElement(Tree.SubElement(table, "thead"), "tr")
    for title in ("Node", "State", "Began", "Took", "", "Why, and the run"):
        _add(header, "th", title)
    rows = Tree.SubElement(table, "tbody")
    last = max((run.ended for run in group.runs if run.ended is not None), default=None)
    for run in group.runs:
        row = Tree.SubElement(rows, "tr")
        slowest = run.ended is not None and run.ended == last and len(group.runs) > 1
        _add(row, "td", run.node, "slowest" if slowest else "")
        _add(row, "td", run.text, f"tone-{tone_of(run.state)}")
        _add(row, "td", "" if run.started is None else show_moment(run.started))
        _add(row, "td", "" if run.seconds is None else show_duration(run.seconds))
        Tree.SubElement(row, "td", {"class": "time"}).append(line.draw(run))
        cell = _add(row, "td", run.reason)
        if run.run:
            _add(cell, "span", f" run {run.run}", "quiet")


def _pairs(parent: Tree.Element, pairs: Iterable[tuple[str, str]]) -> None:
    element = Tree.SubElement(parent, "dl")
    for name, value in pairs:
        _add(element, "dt", name)
        _add(element, "dd", value)


def _add(
    parent: Tree.Element, tag: str, text: str, kind: str = "", *, raw: bool = False
) -> Tree.Element:
    """Add an element with a text; a raw text is localpuppet's own and keeps its lines."""
    element = Tree.SubElement(parent, tag, {"class": kind} if kind else {})
    element.text = text if raw else one_line(text)
    return element


_SUCCESS = "localpuppet_last_rollout_success_timestamp_seconds"
_HELP = {
    "localpuppet_last_rollout_info": "1, with the id of the last rollout of this machine.",
    "localpuppet_last_rollout_running": "Whether a process of this machine controls it.",
    "localpuppet_last_rollout_paused": "Whether it is paused until an operator decides.",
    "localpuppet_last_rollout_noop": "Whether it was to change nothing.",
    "localpuppet_last_rollout_start_timestamp_seconds": "When it began.",
    "localpuppet_last_rollout_end_timestamp_seconds": "When it was over.",
    "localpuppet_last_rollout_duration_seconds": "How long it has been running, or ran.",
    "localpuppet_last_rollout_outcome": "1 for why it is over; all 0 before that.",
    "localpuppet_last_rollout_success": "Whether it is over and every node succeeded.",
    "localpuppet_last_rollout_nodes": "Nodes by state.",
    "localpuppet_last_rollout_resumptions": "How often it was resumed.",
    _SUCCESS: "When a rollout that was to change something last succeeded.",
}


def update(metrics: Path, report: RolloutReport, *, now: datetime) -> None:
    """Replace the textfile: `metrics-rollouts.prom` for `metrics.prom`.

    Args:
        metrics: The textfile of node runs; both are world-readable, without secrets.
        report: The rollout that this machine controls or controlled last.
        now: UTC.
    """
    path = metrics.with_stem(f"{metrics.stem}-rollouts")
    samples = dict(_of(report, now))
    success = _success_before(path)
    if report.succeeded and report.ended is not None and not report.state.began.options.noop:
        success = f"{parse_time(report.ended).timestamp():.3f}"
    if success is not None:
        samples[_SUCCESS] = success
    write_durably(path, show_samples(samples, _HELP).encode(), mode=0o644)


def _success_before(path: Path) -> str | None:
    try:
        return parse_samples(path.read_text("utf-8")).get(_SUCCESS)
    except (OSError, UnicodeDecodeError):
        return None


def _of(report: RolloutReport, now: datetime) -> Iterator[tuple[str, str]]:
    last = "localpuppet_last_rollout_"
    over = report.state.over
    began = parse_time(report.began)
    ended = None if report.ended is None else parse_time(report.ended)
    yield f'{last}info{{id="{report.state.began.id}"}}', "1"
    yield f"{last}running", str(int(report.word in (RUNNING, PAUSED)))
    yield f"{last}paused", str(int(report.state.waits))
    yield f"{last}noop", str(int(report.state.began.options.noop))
    yield f"{last}start_timestamp_seconds", f"{began.timestamp():.3f}"
    if ended is not None:
        yield f"{last}end_timestamp_seconds", f"{ended.timestamp():.3f}"
    yield f"{last}duration_seconds", f"{((ended or now) - began).total_seconds():.3f}"
    for ending in RolloutEnding:
        value = str(int(over is not None and over.ending is ending))
        yield f'{last}outcome{{outcome="{ending}"}}', value
    yield f"{last}success", str(int(report.succeeded))
    counts = report.counts()
    for state in ProgressState:
        yield f'{last}nodes{{state="{state}"}}', str(counts.get(state, 0))
    yield f"{last}resumptions", str(report.state.epoch - 1)
