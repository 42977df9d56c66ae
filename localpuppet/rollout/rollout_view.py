"""A rollout as people see it: one value for terminal and dashboard, and as one printable HTML page.

There is no clock here: a node that is running counts as one that has just started.

The page is a tree of elements. They have classes and no styles, so that a strict
Content-Security-Policy allows them. Texts of nodes and people become one line each, and the
serializer escapes them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from xml.etree import ElementTree as Tree

from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.text import one_line, shown_names
from localpuppet.base.formats.times import parse_time, show_duration
from localpuppet.base.value import Value
from localpuppet.fleet.triggers.cause import succeeded
from localpuppet.rollout import events
from localpuppet.rollout.deciding import time_left
from localpuppet.rollout.rollout_options import describe_options
from localpuppet.rollout.rollout_report import (
    ELSEWHERE,
    INTERRUPTED,
    OVERTAKEN,
    RolloutReport,
    show_counts,
)
from localpuppet.rollout.state import (
    OPEN,
    ProgressState,
    ProgressStates,
    RolloutState,
    count_states,
    of_group,
)

_GOOD, _BAD, _WARN, _ACTIVE = "good", "bad", "warn", "active"
_TONES = {
    "done": _GOOD,
    "failed": _BAD,
    "damaged": _BAD,
    "interrupted": _BAD,
    "done with failures": _WARN,
    "rolled back": _WARN,
    "not reached": _WARN,
    "skipped": _WARN,
    "paused": _WARN,
    "stopped": _WARN,
    "not ready": _WARN,
    "taken over": _WARN,
    "running": _ACTIVE,
}
QUIET = "quiet"
# The state of a rollout by that of its rollback's runs.
_ROLLBACKS = {
    ProgressState.ROLLED_BACK: "rolled back",
    ProgressState.FAILED: "rollback failed",
    ProgressState.NOT_REACHED: "not rolled back",
}


def tone_of(word: str) -> str:
    """Return the tone of a state of a node, a group or a rollout.

    It is `good`, `bad`, `warn`, `active` or `quiet`; each surface has a colour for each.
    """
    return _TONES.get(word, QUIET)


class NodeRunView(Value):
    node_run: events.NodeRun
    state: ProgressState
    failed: bool  # whether this run failed, also if a rollback undid it
    detail: str  # what the state does not say, such as `changed` or `unresponsive`
    reason: str
    run: str
    # When the controller asked for the run, and when its result arrived.
    started: datetime | None
    ended: datetime | None

    @property
    def node(self) -> str:
        return self.node_run.node

    @property
    def tone(self) -> str:
        """The tone of its state, or of its failure."""
        return _BAD if self.failed else tone_of(self.state)

    @property
    def text(self) -> str:
        """The state with its detail."""
        return f"{self.state}, {self.detail}" if self.detail else str(self.state)

    @property
    def seconds(self) -> float | None:
        """The seconds from the request to the result; `None` before that."""
        if self.started is None or self.ended is None:
            return None
        return (self.ended - self.started).total_seconds()


class GroupView(Value):
    """Nodes that may run at the same time; the group of a rollback comes after the last one."""

    title: str
    number: int
    runs: Sequence[NodeRunView]

    @property
    def state(self) -> ProgressState:
        return of_group({run.state for run in self.runs})

    @property
    def counts(self) -> Mapping[str, int]:
        """State → number of its nodes, without zeros."""
        return count_states([run.state for run in self.runs])


class WaitingFor(Value):
    """What a rollout waits for, and when the wait ends by itself."""

    what: str
    until: datetime | None = None


class RolloutView(Value):
    """A rollout as people see it."""

    report: RolloutReport
    counts: Mapping[str, int]  # state → number of nodes, without zeros
    groups: tuple[GroupView, ...]
    rollback: GroupView | None
    release: str
    options: tuple[str, ...]  # the options in words, without defaults
    seconds: float
    left: str  # the estimated time left, in words; empty if there is nothing to estimate
    waiting: WaitingFor | None  # `None` if it is over, or continued elsewhere

    @classmethod
    def of(cls, report: RolloutReport, now: datetime) -> "RolloutView":
        state, states = report.state, ProgressStates(report.state)
        back = sorted(state.took) if state.goes_back else []
        began = parse_time(report.began)
        ended = now if report.ended is None else parse_time(report.ended)

        def group(title: str, step: int, nodes: Sequence[NodeName]) -> GroupView:
            return GroupView(title=title, number=step, runs=_runs(report, states, step, nodes))

        return cls(
            report=report,
            counts=states.counts(),
            groups=tuple(
                group(f"Group {step}", step, nodes)
                for step, nodes in enumerate(state.began.groups, 1)
            ),
            rollback=group("Back to the previous release", state.step_back, back) if back else None,
            release=report.release,
            options=describe_options(state.began.options),
            seconds=max((ended - began).total_seconds(), 0.0),
            left=_left(report, now),
            waiting=_waiting(report),
        )

    @property
    def all_groups(self) -> tuple[GroupView, ...]:
        """The groups, and the runs of a rollback as the last one."""
        return self.groups if self.rollback is None else (*self.groups, self.rollback)

    @property
    def culprits(self) -> list[NodeRunView]:
        """The failed nodes with the run that failed, the first to fail first; once each."""
        culprits: dict[str, NodeRunView] = {}
        runs = [run for group in self.all_groups for run in group.runs if run.failed]
        for run in sorted(runs, key=lambda run: (str(run.ended or "~"), run.node)):
            culprits.setdefault(run.node, run)
        return [*culprits.values()]

    @property
    def headline(self) -> str:
        """The rollout in a line: `r2 → 8 nodes: rolled back, app01 failed`."""
        nodes, word = self.report.state.nodes, self.report.word
        if self.rollback is not None and word not in (INTERRUPTED, OVERTAKEN, ELSEWHERE):
            word = _ROLLBACKS.get(self.rollback.state, "rolling back")
        what = nodes[0] if len(nodes) == 1 else f"{len(nodes)} nodes"
        return show_headline(self.release, what, word, [run.node for run in self.culprits])

    @property
    def previous(self) -> Mapping[str, int]:
        """The releases that it replaces, with the number of nodes that ran each before it."""
        before = self.report.state.previous if self.release else {}
        return {release: nodes for release, nodes in before.items() if release != self.release}

    @property
    def change(self) -> str:
        """The release that it delivers, after the previous ones: `r1, r2 → r3`; may be empty."""
        if not self.previous:
            return self.release
        return f"{shown_names([*self.previous])} → {self.release}"

    def facts(self) -> Iterator[tuple[str, str]]:
        """Yield what an operator wants to know first: names and texts."""
        report, began = self.report, self.report.state.began
        yield "Release", self.change or "none: each node runs what it has"
        yield "By", began.caller
        yield "Began", show_moment(parse_time(report.began))
        if report.ended is not None:
            yield "Over", show_moment(parse_time(report.ended))
        yield "Elapsed", show_duration(self.seconds)
        if self.left:
            yield "Left", self.left
        if self.waiting is not None:
            until = self.waiting.until
            end = "" if until is None else f", until {show_moment(until)}"
            yield "Waits for", f"{self.waiting.what}{end}"
        if self.options:
            yield "Options", "; ".join(self.options)
        if began.approval is not None:
            yield "Approved", f"{began.approval.digest}, of rollout {began.approval.rollout}"
        if began.parent is not None:
            yield "Repeats", f"the failed nodes of {began.parent}"
        if report.state.epoch > 1:
            times = report.state.epoch - 1
            yield "Resumed", "once" if times == 1 else f"{times} times"


def show_headline(release: str, what: str, word: str, failed: Sequence[str] = ()) -> str:
    """Return a rollout in a line: its nodes, such as `8 nodes`, and the first to fail first."""
    change = f"{release.rpartition('/')[2]} → {what}" if release else what
    if not failed:
        return f"{change}: {word}"
    more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
    word = "" if word == ProgressState.FAILED else f"{word}, "
    return f"{change}: {word}{failed[0]}{more} failed"


def show_moment(moment: datetime) -> str:
    """Return a time for people, UTC to the second."""
    return f"{moment:%Y-%m-%d %H:%M:%S UTC}"


def _runs(
    report: RolloutReport, states: ProgressStates, step: int, nodes: Sequence[NodeName]
) -> tuple[NodeRunView, ...]:
    views = []
    for turn in (events.NodeRun(step, node) for node in nodes):
        end, state = report.state.ends.get(turn), states.of_run(turn)
        failed = state is ProgressState.FAILED
        if end is not None and report.state.settled(turn):
            failed = end.result not in (events.NodeResult.SUCCEEDED, events.NodeResult.NOT_REACHED)
        views.append(
            NodeRunView(
                node_run=turn,
                state=state,
                failed=failed,
                detail=_detail(report.state, turn, state),
                reason=_reason(report, turn, state),
                run="" if end is None else end.run or "",
                started=_moment(report.started_at.get(turn)),
                ended=_moment(report.ended_at.get(turn)),
            )
        )
    return tuple(views)


def _detail(state: RolloutState, turn: events.NodeRun, shown: ProgressState) -> str:
    end = state.ends.get(turn)
    if turn in state.differing and shown is ProgressState.WAITING:
        return "for an approval"
    if end is None:
        return ""
    if shown is ProgressState.ROLLED_BACK:
        return "" if end.result is events.NodeResult.SUCCEEDED else "failed"
    if shown in OPEN:
        return "to roll back" if state.settled(turn) else "being checked"
    if turn.step == state.step_back:
        failed = shown is ProgressState.FAILED
        return str(events.NodeResult.ROLLBACK_FAILED if failed else "had not taken the release")
    word = word_of(end)
    return "" if word in (shown, events.NodeResult.SUCCEEDED) else word


def word_of(end: events.NodeRunEnded) -> str:
    """Return the result of a node run in a word: a failed check outweighs a good outcome."""
    agrees = succeeded(end.outcome) == (end.result is events.NodeResult.SUCCEEDED)
    return end.outcome if end.outcome and agrees else str(end.result)


def _reason(report: RolloutReport, turn: events.NodeRun, shown: ProgressState) -> str:
    end = report.state.ends.get(turn)
    if end is not None and end.reason:
        return end.reason
    if shown in (ProgressState.SKIPPED, ProgressState.FAILED):
        return report.reason(turn.node)
    return ""


def _left(report: RolloutReport, now: datetime) -> str:
    if report.word in (INTERRUPTED, ELSEWHERE) or not report.state.durations:
        return ""
    started = report.started_at
    on = {
        turn: (now - parse_time(started[turn])).total_seconds()
        for turn in report.state.running
        if turn in started
    }
    return time_left(report.state, on)


def _waiting(report: RolloutReport) -> WaitingFor | None:
    state = report.state
    if state.over is not None or state.overtaken is not None:
        return None
    if report.word == INTERRUPTED:
        return WaitingFor(what="an operator, to resume it: no process controls it")
    if state.waits:
        return _awaited_decision(state)
    options = state.began.options
    if running := state.running:
        begun = [parse_time(report.started_at[turn]) for turn in running]
        until = min(begun, default=None)
        return WaitingFor(
            what=shown_names(sorted(turn.node for turn in running)),
            until=None if until is None else until + timedelta(seconds=options.timeout),
        )
    if unchecked := state.unchecked:
        return WaitingFor(what=f"the checks of {shown_names([turn.node for turn in unchecked])}")
    if options.delivery is not None and not (state.serials or state.stopped):
        return WaitingFor(what=f"the nodes to stage {options.delivery.release}")
    return None


def pause_end(state: RolloutState) -> datetime | None:
    """Return when the current pause ends without a decision, UTC; `None` if unknown."""
    since = None if state.paused is None else state.paused.since
    length = timedelta(seconds=state.began.options.pause_at_most)
    return None if since is None else since + length


def _awaited_decision(state: RolloutState) -> WaitingFor:
    """Return the decision that ends the current pause."""
    paused, options, until = state.paused, state.began.options, pause_end(state)
    if paused is not None and paused.needs_approval:
        nodes = shown_names(sorted(turn.node for turn in state.differing))
        return WaitingFor(what=f"an operator, to approve what {nodes} would change", until=until)
    choices = "continue, roll back" if options.delivery is not None else "continue"
    return WaitingFor(what=f"an operator, to {choices} or stop it", until=until)


def _moment(text: str | None) -> datetime | None:
    return None if text is None else parse_time(text)


WIDTH = 1000  # of the whole line, in units of the picture
NARROWEST = 6  # the least width of a bar


class TimeLine(Value):
    """The time from the start of a rollout to its end, or to now."""

    begin: datetime
    end: datetime

    @classmethod
    def of(cls, view: RolloutView, now: datetime) -> "TimeLine":
        runs = [run for group in view.all_groups for run in group.runs]
        ends = [run.ended for run in runs if run.ended is not None]
        begins = [run.started for run in runs if run.started is not None]
        last = now if view.report.state.over is None else max(ends, default=now)
        begin = min(begins, default=last)
        return cls(begin=begin, end=max(last, begin))

    @property
    def seconds(self) -> float:
        """Its length."""
        return (self.end - self.begin).total_seconds()

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
            bar = {"x": f"{left:g}", "width": f"{width:g}", "height": "10"}
            Tree.SubElement(root, "rect", {"class": f"tone-{run.tone}", **bar})
        return root

    def draw_text(self, run: NodeRunView) -> str:
        """Return the picture of one run as the text of an SVG element."""
        return Tree.tostring(self.draw(run), encoding="unicode", short_empty_elements=False)

    def _at(self, moment: datetime) -> float:
        part = (moment - self.begin).total_seconds() / max(self.seconds, 0.001)
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
td:first-child { font-weight: 600; }
@media (max-width: 44rem) {
  dl { display: block; } dd { margin-bottom: .4rem; } thead { display: none; }
  table, tbody, tr, th, td, td.time { display: block; width: auto; border: 0; padding: 0; }
  tr { border-bottom: 1px solid #8885; padding-block: .4rem; } td:empty { display: none; } }
.tone-bad dt { color: inherit; font-weight: 600; }
@media print { body { margin: 0; max-width: none; } tr, h2 { break-inside: avoid; } }
"""


def page(report: RolloutReport, now: datetime) -> str:
    """Return the HTML file."""
    view = RolloutView.of(report, now)
    root = Tree.Element("html", lang="en")
    head = Tree.SubElement(root, "head")
    Tree.SubElement(head, "meta", charset="utf-8")
    Tree.SubElement(head, "meta", {"http-equiv": "Content-Security-Policy", "content": POLICY})
    Tree.SubElement(head, "meta", name="viewport", content="width=device-width")
    _add(head, "title", view.headline)
    _add(head, "style", _STYLE, raw=True)
    body = Tree.SubElement(Tree.SubElement(root, "body"), "main")
    _add(body, "h1", view.headline)
    kind = f"tone-{tone_of(report.word)}"
    _add(body, "p", f"{report.word}{': ' if report.why else ''}{report.why}", kind)
    _pairs(body, [(f"{run.node} failed", run.reason) for run in view.culprits], "tone-bad")
    _pairs(body, _facts(view))
    if report.decisions:
        _add(body, "h2", "Decisions")
        _pairs(body, [(show_moment(parse_time(at)), what) for at, what in report.decisions])
    if report.state.seen:
        _add(body, "h2", "Not approved before")
        _pairs(body, _differences(report))
    _add(body, "h2", "Nodes")
    _add_runs(body, view, TimeLine.of(view, now))
    if report.state.predicted_changes:
        _add(body, "h2", "Would change")
        _pairs(body, _would_change(report))
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
    yield "Selection", view.report.state.began.title
    yield from view.facts()
    yield "Nodes", show_counts(view.counts)
    over = view.report.state.over
    if over is not None and over.still_held:
        yield "Still held", ", ".join(f"{node}: {why}" for node, why in over.still_held.items())
    if over is not None and over.held_for_investigation:
        yield "Kept on hold", ", ".join(over.held_for_investigation)


def _add_runs(parent: Tree.Element, view: RolloutView, line: TimeLine) -> None:
    """Add a table with a row for each node of each group."""
    table = Tree.SubElement(parent, "table")
    header = Tree.SubElement(Tree.SubElement(table, "thead"), "tr")
    axis = f"{show_duration(line.seconds)} from {line.begin:%H:%M:%S}"
    for title in ("Node", "State", "Began", "Took", axis, "Why, and the run"):
        _add(header, "th", title)
    for group in view.all_groups:
        _add_group(Tree.SubElement(table, "tbody"), group, line)


def _add_group(rows: Tree.Element, group: GroupView, line: TimeLine) -> None:
    title = _add(Tree.SubElement(rows, "tr"), "th", f"{group.title}: {group.state}")
    title.set("colspan", "6")
    for run in group.runs:
        row = Tree.SubElement(rows, "tr")
        _add(row, "td", run.node)
        _add(row, "td", run.text, f"tone-{run.tone}")
        _add(row, "td", "" if run.started is None else show_moment(run.started))
        _add(row, "td", "" if run.seconds is None else show_duration(run.seconds))
        Tree.SubElement(row, "td", {"class": "time"}).append(line.draw(run))
        cell = _add(row, "td", run.reason)
        if run.run:
            _add(cell, "span", f" run {run.run}", "quiet")


def _pairs(parent: Tree.Element, pairs: Iterable[tuple[str, str]], kind: str = "") -> None:
    element = Tree.SubElement(parent, "dl", {"class": kind} if kind else {})
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
