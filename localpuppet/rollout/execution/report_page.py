"""The report of a rollout as one printable HTML file, without scripts and external resources.

The document is a tree of elements. Texts of nodes and people become one line each, and the
serializer escapes them.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from xml.etree import ElementTree as Tree

from localpuppet.base.formats.text import one_line
from localpuppet.base.formats.times import parse_time, show_duration
from localpuppet.fleet.records import to_record
from localpuppet.rollout.execution.events import NodeResult, NodeRun
from localpuppet.rollout.execution.options import RolloutOptions
from localpuppet.rollout.execution.report import RolloutReport, show_counts

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_NARROWEST = 0.4  # the least width of a bar, in percent
_STYLE = """
:root { color-scheme: light dark; --good: #1a7f37; --bad: #b42318; --quiet: #6a6a6a; }
@media (prefers-color-scheme: dark) { :root { --good: #5dd879; --bad: #ff8a80; --quiet: #a0a0a0; } }
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
.bar { display: block; height: .8rem; margin-top: .3rem; background: var(--good);
  print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.good { color: var(--good); } .bad { color: var(--bad); } .bar.bad { background: var(--bad); }
.quiet { color: var(--quiet); } .slowest { font-weight: 600; }
@media print { body { margin: 0; max-width: none; } tr, h2 { break-inside: avoid; } }
"""


def page(report: RolloutReport) -> str:
    """Return the HTML file."""
    began = report.state.began
    root = Tree.Element("html", lang="en")
    head = Tree.SubElement(root, "head")
    Tree.SubElement(head, "meta", charset="utf-8")
    Tree.SubElement(head, "meta", {"http-equiv": "Content-Security-Policy", "content": POLICY})
    Tree.SubElement(head, "meta", name="viewport", content="width=device-width")
    _add(head, "title", f"Rollout {began.id}: {report.word}")
    _add(head, "style", _STYLE, raw=True)
    body = Tree.SubElement(Tree.SubElement(root, "body"), "main")
    _add(body, "h1", began.title or "Rollout")
    kind = "good" if report.succeeded else "quiet" if report.ended is None else "bad"
    _add(body, "p", f"{report.word}{': ' if report.why else ''}{report.why}", kind)
    _pairs(body, _facts(report))
    if report.decisions:
        _add(body, "h2", "Decisions")
        _pairs(body, [(_moment(at), what) for at, what in report.decisions])
    if report.state.seen:
        _add(body, "h2", "Not approved before")
        _pairs(body, _differences(report))
    for step, group in enumerate(began.groups, 1):
        _add(body, "h2", f"Group {step}")
        _runs(body, report, [NodeRun(step, node) for node in group])
    if report.state.goes_back:
        _add(body, "h2", "Back to what they ran before")
        _runs(body, report, [NodeRun(report.state.step_back, node) for node in report.state.took])
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
    for node, told in sorted(report.state.predicted_changes.items()):
        changes = "; ".join(map(str, told.changes)) or "nothing"
        yield node, f"{told.release}: {changes if told.whole else f'{told.total} properties'}"


def _facts(report: RolloutReport) -> Iterable[tuple[str, str]]:
    began, over = report.state.began, report.state.over
    yield "Rollout", began.id
    yield "By", began.caller
    yield "Began", _moment(report.began)
    if report.ended is not None:
        yield "Over", _moment(report.ended)
        yield "Took", show_duration(_between(report.began, report.ended))
    yield "Nodes", show_counts(report.counts())
    if began.approval is not None:
        yield "Approved", f"{began.approval.digest}, of rollout {began.approval.rollout}"
    if began.parent is not None:
        yield "Second try of", began.parent
    if report.state.epoch > 1:
        yield "Resumed", f"{report.state.epoch - 1} times"
    if began.options.delivery is not None:  # without its class values: they may be secret
        yield "Release", str(began.options.delivery.release)
    usual = to_record(RolloutOptions())
    options = {
        name: one
        for name, one in to_record(began.options).items()
        if name != "delivery" and one != usual[name]
    }
    if options:
        yield "Options", "; ".join(f"{name}: {one}" for name, one in sorted(options.items()))
    if over is not None and over.still_held:
        yield "Still held", ", ".join(f"{node}: {why}" for node, why in over.still_held.items())
    if over is not None and over.held_for_investigation:
        yield "Kept on hold", ", ".join(over.held_for_investigation)


def _runs(parent: Tree.Element, report: RolloutReport, turns: Sequence[NodeRun]) -> None:
    """Add a table with a row for each node run."""
    table = Tree.SubElement(parent, "table")
    header = Tree.SubElement(Tree.SubElement(table, "thead"), "tr")
    for title in ("Node", "Ended", "Began", "Took", "", "Why, and the run"):
        _add(header, "th", title)
    rows = Tree.SubElement(table, "tbody")
    ended = [turn for turn in turns if turn in report.ended_at]
    last = max(ended, key=lambda turn: _moment_of(report, turn), default=None)
    for turn in turns:
        row = Tree.SubElement(rows, "tr")
        _add(row, "td", turn.node, "slowest" if turn == last and len(turns) > 1 else "")
        word, kind = _ended(report, turn)
        _add(row, "td", word, kind)
        _add(row, "td", _moment(report.started_at.get(turn)))
        seconds = report.seconds(turn)
        _add(row, "td", "" if seconds is None else show_duration(seconds))
        _bar(Tree.SubElement(row, "td", {"class": "time"}), report, turn, kind)
        end = report.state.ends.get(turn)
        reason = end.reason if end is not None else report.state.skipped.get(turn.node, "")
        cell = _add(row, "td", reason)
        if end is not None and end.run:
            _add(cell, "span", f" run {end.run}", "quiet")


def _ended(report: RolloutReport, turn: NodeRun) -> tuple[str, str]:
    """Return the result of a node run in a word, and its CSS class."""
    end = report.state.ends.get(turn)
    if end is not None:
        well = end.result is NodeResult.SUCCEEDED
        word = end.outcome if well else ""
        return word or str(end.result), "good" if well else "bad"
    if turn.node in report.state.skipped:
        return "skipped", "quiet"
    if turn in report.started_at:
        return "unknown" if report.ended else "running", "quiet"
    return "not reached" if report.ended else "waits", "quiet"


def _bar(cell: Tree.Element, report: RolloutReport, turn: NodeRun, kind: str) -> None:
    """Add a bar from a run's start to its end, relative to the duration of the rollout."""
    begun, ended = report.started_at.get(turn), report.ended_at.get(turn)
    if begun is None or ended is None:
        return
    times = [*report.ended_at.values(), report.ended or report.began]
    whole = max(max(_between(report.began, at) for at in times), 0.001)
    left = min(max(_between(report.began, begun) / whole * 100, 0), 100 - _NARROWEST)
    width = min(max(_between(begun, ended) / whole * 100, _NARROWEST), 100 - left)
    style = f"margin-left: {left:.2f}%; width: {width:.2f}%"
    Tree.SubElement(cell, "span", {"class": f"bar {kind}", "style": style})


def _pairs(parent: Tree.Element, pairs: Iterable[tuple[str, str]]) -> None:
    found = Tree.SubElement(parent, "dl")
    for name, value in pairs:
        _add(found, "dt", name)
        _add(found, "dd", value)


def _add(
    parent: Tree.Element, tag: str, text: str, kind: str = "", *, raw: bool = False
) -> Tree.Element:
    """Add an element with a text; a raw text is localpuppet's own and keeps its lines."""
    element = Tree.SubElement(parent, tag, {"class": kind} if kind else {})
    element.text = text if raw else one_line(text)
    return element


def _moment_of(report: RolloutReport, turn: NodeRun) -> datetime:
    return parse_time(report.ended_at[turn])


def _moment(text: str | None) -> str:
    return parse_time(text).strftime("%Y-%m-%d %H:%M:%S UTC") if text else ""


def _between(begin: str, end: str) -> float:
    return (parse_time(end) - parse_time(begin)).total_seconds()
