"""The days of a node, what drifts, and the map of the fleet."""

import json
import re
from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.web.dashboard.activity import (
    MOST_CELLS,
    ROLE,
    day_strip,
    days_before,
    heat_map,
)
from localpuppet.web.dashboard.nodes import MapNode
from tests.fleet.inventory.entries import entry
from tests.web.dashboard.past import MOTD, summarise, summary
from tests.web.dashboard.site import Site, listed, names, run_id, text

NOW = 1_795_000_000.0
HOUR, DAY = 3600.0, 86400.0


def test_a_day_has_the_colour_and_the_letter_of_its_worst_result() -> None:
    today = days_before(NOW)[-1]
    counts = {
        (today, Kind.UNCHANGED): 5,
        (today - 1, Kind.UNCHANGED): 40,
        (today - 1, Kind.CHANGED): 2,
        (today - 2, Kind.CHANGED): 2,
        (today - 2, Kind.TIMED_OUT): 1,
        (today - 99, Kind.FAILED): 1,
    }
    cells = day_strip("web01", counts, now=NOW)
    assert len(cells) == 14
    assert [(one.letter, one.style, one.words) for one in cells[-4:]] == [
        ("–", "", "no run"),
        ("F", "failed", "1 failed, 2 changed"),
        ("C", "changed", "2 changed, 40 no change"),
        ("✓", "unchanged", "5 no change"),
    ]
    assert cells[-1].url == "/runs?node=web01&from=2026-11-18T00%3A00Z&to=2026-11-19T00%3A00Z"


def test_the_changes_on_a_node_of_yesterday_are_two_clicks_away(
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


def test_drift_is_listed_by_node_and_by_resource(visitor: TestClient, site: Site) -> None:
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
    assert page.index("By resource") < page.index("By node")
    counts = re.findall(r'class="count"><b>(\d+)</b>', page)
    assert counts == ["3", "1", "2", "2"]
    told = json.loads(text(visitor, "/drift.json?name=web"))["drift"]
    assert [(one["node"], one["resource"], one["count"], one["run"]) for one in told] == [
        ("web01", "File[/etc/motd]", 2, run_id(at + 9))
    ]
    assert text(visitor, "/drift.csv?q=role%3Dlb").count("\n") == 1
    assert text(visitor, "/drift.txt") == "db01\nweb01\n"


def test_without_drift_the_view_has_a_note(visitor: TestClient) -> None:
    assert "No run of these days corrected a resource." in text(visitor, "/drift")


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
    assert visitor.get("/map?sort=x").status_code == 400


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
    groups = heat_map(rows, by=ROLE, name_of=lambda row: row.roles)
    shown = [cell for group in groups for cell in group.cells]
    assert len(shown) <= MOST_CELLS
    if roles < 300:
        assert sum(group.total for group in groups) == 10_000
        assert sum(cell.word == "failed" for cell in shown) == 20
    assert groups[0].counts[-1][0] == "good"
