"""The chart of runs, the days of a node, drift, the map, styles, times and facts."""

import html
import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import click
import pytest
from starlette.testclient import TestClient

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.values import Json
from localpuppet.fleet.cli.nodes import cells
from localpuppet.fleet.inventory.presence import STATES
from localpuppet.fleet.inventory.run_end import BAD, CHANGED, GOOD, Kind
from localpuppet.web.dashboard import activity
from localpuppet.web.dashboard.inventory_questions import MAX_LEAVES, MAX_VALUE, tree_of
from localpuppet.web.dashboard.list_query import CONCERNS
from localpuppet.web.dashboard.nodes import MapNode
from localpuppet.web.dashboard.rollouts import RolloutRow
from localpuppet.web.dashboard.run_table import HOUR
from localpuppet.web.dashboard.view_context import HERE, show_age, show_moment
from tests.fleet.inventory.entries import entry
from tests.fleet.make import a_row
from tests.web.make import MOTD, Site, listed, names, run_id, summarise, summary, text

NOW = 1_795_000_000.0  # 2026-11-18 11:06:40
LAST = int(NOW // HOUR)


def test_a_bar_counts_the_runs_of_its_hour_and_leads_to_them() -> None:
    counts = {
        (LAST, Kind.UNCHANGED): 3,
        (LAST, Kind.CHANGED): 2,
        (LAST, Kind.COMPILE_FAILED): 1,
        (LAST - 23, Kind.FAILED): 1,
        (LAST - 24, Kind.FAILED): 9,
    }
    chart = activity.time_chart(counts, (), range_=activity.RANGES["24h"], now=NOW, since=None)
    assert len(chart.bars) == 24
    last = chart.bars[-1]
    assert last.counts == {GOOD: 3, CHANGED: 2, BAD: 1}
    assert last.title == "18 Nov 11:00 to 12:00 UTC: 6 runs, 2 changed, 1 failed"
    assert last.url == "/runs?from=2026-11-18T11%3A00Z&to=2026-11-18T12%3A00Z"
    assert "result=failed" in last.failures_url
    assert (chart.bars[0].begin, chart.bars[0].total) == ((LAST - 23) * HOUR, 1)
    assert (chart.sum(), chart.sum(BAD)) == (7, 2)


def test_failures_have_a_scale_of_their_own() -> None:
    counts = {(LAST, Kind.UNCHANGED): 19_000, (LAST, Kind.FAILED): 3, (LAST - 1, Kind.FAILED): 5}
    chart = activity.time_chart(counts, (), range_=activity.RANGES["24h"], now=NOW, since=None)
    assert [number for _, number in chart.lines] == [5, 0, 20_000, 0]
    (failed, top, height), (good, _, tall) = chart.bars[-1].rectangles
    assert (failed, good) == ("failed", "unchanged")
    assert height == pytest.approx(0.6 * (activity.FAILURES[1] - activity.FAILURES[0]))
    assert top + height == pytest.approx(activity.FAILURES[1])
    assert tall == pytest.approx(0.95 * (activity.RUNS_PANEL[1] - activity.RUNS_PANEL[0]), abs=0.1)


@pytest.mark.parametrize(("word", "bars", "begins"), [("7d", 28, 6), ("90d", 90, 24)])
def test_longer_ranges_have_bars_of_more_hours(word: str, bars: int, begins: int) -> None:
    counts = {(LAST - back, Kind.CHANGED): 1 for back in range(2200)}
    chart = activity.time_chart(counts, (), range_=activity.RANGES[word], now=NOW, since=None)
    assert len(chart.bars) == bars
    assert all(bar.begin % (begins * HOUR) == 0 for bar in chart.bars)
    assert {bar.total for bar in chart.bars[:-1]} == {begins}
    assert 3 <= len(chart.labels) <= 7
    assert all(0 <= x < 86 for x, _ in chart.labels)


def test_rollouts_of_the_range_are_marked_and_a_later_history_is_named() -> None:
    rows = [
        RolloutRow(id=f"r{number}", state="done", started_at=NOW - number * HOUR)
        for number in range(100)
    ]
    rows.append(RolloutRow(id="unknown", state="damaged"))
    chart = activity.time_chart({}, rows, range_=activity.RANGES["24h"], now=NOW, since=NOW - HOUR)
    assert len(chart.markers) == 24
    assert chart.markers[-1].rollout.id == "r0"
    assert 95 < chart.markers[-1].x < 100
    assert chart.since == NOW - HOUR
    whole = activity.time_chart(
        {}, rows, range_=activity.RANGES["7d"], now=NOW, since=NOW - 30 * 86400
    )
    assert len(whole.markers) == activity.MOST_MARKERS
    assert whole.since is None


def test_an_unknown_range_is_an_error() -> None:
    assert activity.range_of("") is activity.RANGES["24h"]
    with pytest.raises(InvalidInputError, match="24h, 7d, 90d"):
        activity.range_of("1y")


DAY = 86400.0


def test_a_day_has_the_colour_and_the_letter_of_its_worst_result() -> None:
    today = activity.days_before(NOW)[-1]
    counts = {
        (today, Kind.UNCHANGED): 5,
        (today - 1, Kind.UNCHANGED): 40,
        (today - 1, Kind.CHANGED): 2,
        (today - 2, Kind.CHANGED): 2,
        (today - 2, Kind.TIMED_OUT): 1,
        (today - 99, Kind.FAILED): 1,
    }
    cells = activity.day_strip("web01", counts, now=NOW)
    assert len(cells) == 14
    assert [(one.letter, one.style, one.words) for one in cells[-4:]] == [
        ("–", "", "no run"),
        ("F", "failed", "1 failed, 2 changed"),
        ("C", "changed", "2 changed, 40 no change"),
        ("✓", "unchanged", "5 no change"),
    ]
    assert cells[-1].url == "/runs?node=web01&from=2026-11-18T00%3A00Z&to=2026-11-19T00%3A00Z"


def test_changes_of_yesterday_on_a_node_are_two_clicks_away(
    visitor: TestClient, site: Site
) -> None:
    at = site.now() - DAY
    changed = summary("web01", at, outcome=Kind.CHANGED, resources=(MOTD,))
    summarise(site, changed, summary("web01", at - HOUR))
    node = text(visitor, "/nodes/web01")
    (url,) = re.findall(r'href="(/runs\?node=web01&amp;from=2026-11-19[^"]*)"', node)
    page = text(visitor, url.replace("&amp;", "&"))
    assert listed(page) == [f"web01-{run_id(at)}", f"web01-{run_id(at - HOUR)}"]
    # The node's own list has it, too.
    for part in (MOTD.resource, MOTD.place):
        assert part in page
        assert part in node


def test_drift_is_listed_by_resource_and_filed_by_node(visitor: TestClient, site: Site) -> None:
    ssh = replace(MOTD, type="Service", title="ssh", corrective_change=True)
    motd = replace(MOTD, corrective_change=True)
    at = site.now() - DAY
    summarise(
        site,
        *(summary("web01", at + step, outcome=Kind.CHANGED, resources=(motd,)) for step in (0, 9)),
        summary("db01", at, outcome=Kind.CHANGED, resources=(motd, ssh)),
        summary("lb01", at - 9 * DAY, outcome=Kind.CHANGED, resources=(motd,)),
    )
    page = text(visitor, "/drift")
    assert re.findall(r'class="count"><b>(\d+)</b>', page) == ["3", "1"]
    assert page.index("node=web01&amp;result=changed") < page.index("node=db01&amp;result=changed")
    told = json.loads(text(visitor, "/drift.json?name=web"))["drift"]
    assert [(one["node"], one["resource"], one["count"], one["run"]) for one in told] == [
        ("web01", "File[/etc/motd]", 2, run_id(at + 9))
    ]
    assert text(visitor, "/drift.csv?q=role%3Dlb").count("\n") == 1
    assert text(visitor, "/drift.txt") == "web01\ndb01\n"


def test_the_map_has_a_cell_for_each_node_by_urgency(visitor: TestClient) -> None:
    page = text(visitor, "/map")
    cells = re.findall(r'class="cell ([\w-]+)" href="/nodes/(\w+)" title="([^"]*)"', page)
    assert ("failed", "web02", "web02: failed") in cells
    assert ("on-hold", "lb01", "lb01: on hold") in cells
    assert ("changed", "web01", "web01: changed") in cells
    assert [node for _, node, _ in cells[:3]] == ["web02", "eve", "db01"]
    assert 'href="/nodes?q=role%3D%22web%22"' in page


def test_the_map_groups_by_any_fact(visitor: TestClient, site: Site) -> None:
    facts = {"os": {"family": "Debian"}, "rack": {"row": 7}}
    site.list_(entry("web01", at=site.now(), facts=facts))
    assert 'q=os.family%3D%22Debian%22">Debian</a> <small>1: 1 changed' in text(
        visitor, "/map?by=os.family"
    )
    assert ">7</a>" in text(visitor, "/map?by=rack.row")
    assert 'q=osfamily%3D%22Debian%22">Debian</a>' in text(visitor, "/map?by=osfamily")
    assert visitor.get("/map?sort=x").status_code == 400


@pytest.mark.parametrize(
    ("by", "values", "groups"),
    [
        ("is_virtual", [True, False, True], {"true": ["db01", "web01"], "false": ["lb01"]}),
        ("count", [4, 40, "4"], {"4": ["db01", "web01"], "40": ["lb01"]}),
        ("os.minor", ["12.1", "12.10", "12.1"], {"12.1": ["db01", "web01"], "12.10": ["lb01"]}),
        ("models.1", [["x", 2], ["x", 3], ["y", 2]], {"2": ["db01", "web01"], "3": ["lb01"]}),
        ("quote", ['a "b"', "a\\b\\", 'a "b"'], {'a "b"': ["db01", "web01"], "a\\b\\": ["lb01"]}),
    ],
)
def test_a_group_of_the_map_leads_to_its_nodes(
    visitor: TestClient, site: Site, by: str, values: list[Any], groups: dict[str, list[str]]
) -> None:
    first, *rest = by.split(".")
    site.list_(
        *(
            entry(
                name,
                at=site.now(),
                facts={first: value if rest in ([], ["1"]) else {rest[0]: value}},
            )
            for name, value in zip(("web01", "lb01", "db01"), values, strict=True)
        )
    )
    links = re.findall(r'<h2><a href="([^"]+)">(.*?)</a>', text(visitor, f"/map?by={by}"))
    pages = {html.unescape(name): text(visitor, html.unescape(url)) for url, name in links}
    assert {name: sorted(listed(page)) for name, page in pages.items()} == groups


@pytest.mark.parametrize("roles", [1, 5, 300])
def test_a_large_fleet_shows_the_urgent_nodes_and_counts_the_rest(roles: int) -> None:
    rows = [
        MapNode(
            name,
            severity=0 if number % 500 == 0 else 6,
            outcome=Kind.UNCHANGED,
            roles=f"role{number % roles}",
        )
        for number, name in enumerate(names(10_000))
    ]
    groups = activity.heat_map(rows, name_of=lambda row: row.roles, query_of=str)
    shown = [cell for group in groups for cell in group.cells]
    assert len(shown) <= activity.MOST_CELLS
    if roles < 300:
        assert sum(group.total for group in groups) == 10_000
        assert sum(cell.word == "failed" for cell in shown) == 20
    assert groups[0].counts[-1][0] == "good"


@pytest.mark.parametrize("word", [*(kind for kind in Kind if kind is not Kind.NONE), *CONCERNS])
def test_each_outcome_and_state_has_a_style(word: str) -> None:
    styles = (HERE / "static" / "page.css").read_text()
    assert re.search(rf"\.{word.replace(' ', '-')}\b", styles)


COLORS = {
    "bad": "red",
    "warn": "yellow",
    "changed": "cyan",
    "corrected": "magenta",
    "good": "green",
}


@pytest.mark.parametrize("word", [*(kind for kind in Kind if kind is not Kind.NONE), *STATES])
def test_a_state_has_the_same_colour_in_the_terminal(word: str) -> None:
    styles = (HERE / "static" / "page.css").read_text()
    name = re.escape(word.replace(" ", "-"))
    (tone,) = re.findall(rf"\.{name}[ ,][^{{}}]*\{{ --of: var\(--(\w+)\)", styles)
    row = a_row("a", state=word) if word in STATES else a_row("a", outcome=Kind(word))
    shown = cells(row, datetime(2026, 11, 23, tzinfo=UTC))
    assert click.style(word, fg=COLORS[tone], bold=True) in shown


MOMENT = datetime(2026, 11, 20, 14, 0, 30, tzinfo=UTC)


@pytest.mark.parametrize(
    ("moment", "shown"),
    [
        ("2026-11-20T00:00:00", "00:00:00 UTC"),
        ("2026-11-20T23:59:59", "23:59:59 UTC"),
        ("2026-11-19T23:35:00", "yesterday 23:35:00 UTC"),
        ("2026-11-21T09:00:00", "tomorrow 09:00:00 UTC"),
        ("2026-11-18T23:59:59", "2026-11-18 23:59:59 UTC"),
        ("2026-11-22T00:00:00", "2026-11-22 00:00:00 UTC"),
    ],
)
def test_a_time_has_its_day_unless_it_is_today(moment: str, shown: str) -> None:
    assert show_moment(datetime.fromisoformat(f"{moment}+00:00"), MOMENT) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0 s ago"),
        (12.9, "12 s ago"),
        (60, "1 minute ago"),
        (3599, "59 minutes ago"),
        (3600, "1 hour ago"),
        (86400, "1 day ago"),
        (40 * 86400, "40 days ago"),
        (-7, "in 7 s"),
        (-7200, "in 2 hours"),
    ],
)
def test_an_age_has_one_unit(seconds: float, shown: str) -> None:
    assert show_age(MOMENT - timedelta(seconds=seconds), MOMENT) == shown


FACTS: dict[str, Json] = {
    "os": {"family": "Debian", "release": {"major": "12"}},
    "empty": {},
    "list": [1, "a"],
}


def test_mappings_are_branches_and_all_else_is_text() -> None:
    tree = tree_of(FACTS)
    assert [one.key for one in tree.branches] == ["empty", "list", "os"]
    assert [one.text for one in tree.branches] == ["{}", '[1, "a"]', ""]
    assert [one.path for one in tree.branches[2].parts] == ["os.family", "os.release"]
    assert (tree.shown, tree.left_out) == (4, False)


def test_legacy_facts_are_a_part_of_their_own_and_are_cut_first() -> None:
    facts: dict[str, Json] = {"osfamily": "Debian", "ipaddress_eth0": "10.0.0.1", **FACTS}
    tree = tree_of(facts)
    assert [one.key for one in tree.branches] == ["empty", "list", "os"]
    assert [one.key for one in tree.legacy] == ["ipaddress_eth0", "osfamily"]
    many = {f"k{number}": number for number in range(MAX_LEAVES)}
    assert tree_of({"architecture": "amd64", **many}).legacy == ()
    assert tree_of({"architecture": "amd64", **many}).left_out


def test_a_search_finds_paths_and_values_in_any_case() -> None:
    assert [one.key for one in tree_of(FACTS, "DEBIAN").branches] == ["os"]
    assert tree_of(FACTS, "release.maj").shown == 1
    assert tree_of(FACTS, "nowhere").branches == ()


def test_the_number_of_shown_facts_is_limited() -> None:
    tree = tree_of({f"k{number}": number for number in range(3 * MAX_LEAVES)})
    assert (tree.shown, tree.left_out) == (MAX_LEAVES, True)
    (one,) = tree_of({"x" * 5000: "\u202ey" * 5_000_000}).branches
    assert len(one.key) < MAX_VALUE
    assert len(one.text) == MAX_VALUE
    assert "\u202e" not in one.text
    deep: dict[str, Json] = {"end": 1}
    for _ in range(40):
        deep = {"d": deep}
    assert tree_of(deep).shown == 1
