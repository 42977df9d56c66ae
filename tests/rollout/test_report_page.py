"""The report as one HTML file: its contents, and that no value breaks out of its place."""

from dataclasses import replace
from html.parser import HTMLParser

from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.formats.times import parse_time
from localpuppet.rollout.events import (
    ChangesApproved,
    ChangesPredicted,
    ChecksEnded,
    Event,
    NodeResult,
    NodeRun,
    NodeRunEnded,
    NodeRunsStarted,
    NodesSkipped,
    RolloutContinued,
    RolloutEnded,
    RolloutEnding,
    RolloutPaused,
)
from localpuppet.rollout.rollout_options import Delivery, RolloutOptions, compare
from localpuppet.rollout.rollout_report import RolloutReport
from localpuppet.rollout.rollout_view import page
from tests.rollout.foretold import approved, change, foretold
from tests.rollout.simulated import began, node

NOW = parse_time("2026-11-22T12:00:00Z")
EVIL = "</td><script>alert(1)</script>&\"'\x1b[2J\u202e"
FIRST = replace(
    began([1, 2], [3, 4], checks=("http://a/<b>",)), title=f"shop {EVIL}", caller=f"choria={EVIL}"
)


class Reader(HTMLParser):
    """Reads a page as a browser does: elements, texts, attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.values: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.values += [value or "" for _, value in attrs]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def report(*events: Event) -> RolloutReport:
    """Return a report of events that come ten seconds apart."""
    timed = [(f"2026-11-22T11:{n // 6:02}:{n % 6}0.000000Z", one) for n, one in enumerate(events)]
    return RolloutReport.of(timed, taken=False)


def test_texts_of_nodes_and_people_are_escaped() -> None:
    found = report(
        FIRST,
        NodesSkipped(reasons={node(4): EVIL}),
        NodeRunsStarted(node_runs=(NodeRun(1, node(1)), NodeRun(1, node(2)))),
        NodeRunEnded(
            node_run=NodeRun(1, node(1)), result=NodeResult.SUCCEEDED, outcome=EVIL, run=EVIL
        ),
        NodeRunEnded(
            node_run=NodeRun(1, node(2)), result=NodeResult.FAILED, outcome=EVIL, reason=EVIL
        ),
        RolloutPaused(reason=EVIL),
        RolloutContinued(caller=EVIL),
        RolloutEnded(
            ending=RolloutEnding.FAILED,
            reason=EVIL,
            still_held={node(1): EVIL},
            held_for_investigation=(node(2),),
        ),
    )
    text = page(found, NOW)
    reader = Reader(text)
    assert "script" not in reader.tags
    assert sum("<script>alert(1)</script>" in one for one in reader.texts) >= 9
    assert not any("script" in value for value in reader.values)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert set(reader.tags) == {
        *("html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "p"),
        *("dl", "dt", "dd", "table", "thead", "tbody", "tr", "th", "td", "span"),
        *("svg", "rect"),
    }
    assert not any(value.startswith(("http", "//")) for value in reader.values)


def test_the_report_shows_each_node_run_with_its_times_and_result() -> None:
    found = report(
        replace(FIRST, title="shop"),
        NodeRunsStarted(node_runs=(NodeRun(1, node(1)), NodeRun(1, node(2)))),
        NodeRunEnded(
            node_run=NodeRun(1, node(1)), result=NodeResult.SUCCEEDED, outcome="changed", run="r1"
        ),
        NodeRunEnded(node_run=NodeRun(1, node(2)), result=NodeResult.SUCCEEDED, outcome="changed"),
        ChecksEnded(node_run=NodeRun(1, node(1)), problem="check http://a/: answered 503"),
        ChecksEnded(node_run=NodeRun(1, node(2))),
        RolloutEnded(ending=RolloutEnding.FAILED, reason="1 node failed", still_held={}),
    )
    texts = Reader(page(found, NOW)).texts
    for text in (
        "shop",
        "failed: 1 node failed",
        "check http://a/: answered 503",
        "1 done, 1 failed, 2 not reached",
        " run r1",
        "done, changed",
        "failed",
        "Group 1: failed",
        "Group 2: not reached",
        "not reached",
        "2026-11-22 11:01:00 UTC",
    ):
        assert text in texts, text
    assert '<rect class="tone-bad" x="0" width="500" height="10"></rect>' in page(found, NOW)
    assert f'class="slowest">{node(2)}<' in page(found, NOW)


def test_a_release_is_named_and_its_values_are_not() -> None:
    delivery = Delivery(
        release=ReleasePath.parse("shop/tags/r2", where=""),
        layers=(),
        classes={"shop": {"banner": "canary-6f1e"}},
        allow_older=False,
    )
    first = replace(FIRST, options=RolloutOptions(delivery=delivery, window=2))
    text = page(report(first), NOW)
    assert {"shop/tags/r2", "at most 2 nodes at a time"} <= set(Reader(text).texts)
    assert "canary-6f1e" not in text


def test_a_running_rollout_has_a_report_too() -> None:
    texts = Reader(
        page(report(FIRST, NodeRunsStarted(node_runs=(NodeRun(1, node(1)),))), NOW)
    ).texts
    assert {"interrupted", "running", "waiting", "not started", "Group 1: running"} <= set(texts)


def test_the_report_shows_unapproved_changes_and_who_approved_them() -> None:
    turn, more = NodeRun(1, node(1)), change(EVIL)
    found = compare(foretold(), foretold(more))
    told = report(
        approved(FIRST),
        NodeRunsStarted(node_runs=(turn,)),
        ChangesPredicted(node_run=turn, difference=found),
        RolloutPaused(reason="n01.example.com differs", needs_approval=True),
        ChangesApproved(node_run=turn, difference=found.digest, approved_by=EVIL),
        NodeRunEnded(
            node_run=turn,
            result=NodeResult.SUCCEEDED,
            outcome="changed",
            predicted_changes=foretold(more),
        ),
    )
    reader = Reader(page(told, NOW))
    assert "script" not in reader.tags
    assert {"Not approved before", "Would change"} <= set(reader.texts)
    assert any(one.startswith("would make 1 change") for one in reader.texts)
    (one,) = told.to_dict()["differences"]
    assert (one["node"], one["difference"], one["approved_by"]) == (node(1), found.digest, EVIL)
    assert one["changes"] == [{"type": "File", "title": EVIL, "property": "content"}]
    assert told.summary()["waits_for"] == []
    assert [what for _, what in told.decisions][-1].endswith(f"({found.digest})")
