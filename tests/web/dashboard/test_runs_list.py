"""The list of the runs of all nodes, and what they changed."""

import json
from dataclasses import replace

import pytest
from starlette.testclient import TestClient

from localpuppet.fleet.inventory.run_end import Kind
from tests.web.dashboard.past import MOTD, summarise, summary
from tests.web.dashboard.site import Site, listed, run_id, text


@pytest.fixture
def past(site: Site) -> float:
    """Return a time yesterday at which web01 changed a file and web02 failed."""
    at = site.now() - 86400
    summarise(
        site,
        summary("web01", at, outcome=Kind.CHANGED, resources=(MOTD,), cause="timer"),
        summary("web02", at - 5, outcome=Kind.FAILED, reason="Could not find class … for …"),
        summary("web01", at - 60),
    )
    return at


def test_runs_are_filtered_by_node_result_and_time(visitor: TestClient, past: float) -> None:
    assert listed(text(visitor, "/runs?node=web01&result=changed"))[-1] == f"web01-{run_id(past)}"
    assert listed(text(visitor, "/runs?result=failed&name=web"))[-1] == f"web02-{run_id(past - 5)}"
    yesterday = "/runs?from=2026-11-19T13:59Z&to=2026-11-19T14:01"
    assert len(listed(text(visitor, "/runs"))) == 7
    assert listed(text(visitor, yesterday)) == [
        f"web01-{run_id(past)}",
        f"web02-{run_id(past - 5)}",
        f"web01-{run_id(past - 60)}",
    ]
    page = text(visitor, "/runs?q=role%3Dweb&sort=at")
    assert listed(page)[0] == f"web01-{run_id(past - 60)}"
    assert "The dashboard knows no such run." in text(visitor, "/runs?node=unknown")


def test_a_run_shows_its_cause_its_error_and_its_resources(
    visitor: TestClient, past: float
) -> None:
    page = text(visitor, "/runs?from=2026-11-19T13:00Z&to=2026-11-19T15:00Z")
    for part in (MOTD.resource, MOTD.place, "timer", "Could not find class … for …"):
        assert part in page
    told = json.loads(text(visitor, "/runs.json?node=web01&result=changed"))["runs"][-1]
    assert told["resources"] == ["changed File[/etc/motd] profile/manifests/motd.pp:3"]
    assert (told["cause"], told["seconds"]) == ("timer", 20)


@pytest.mark.usefixtures("past")
def test_an_open_page_reads_no_history_again(visitor: TestClient) -> None:
    for path in ("/runs", "/audit", "/drift"):
        assert text(visitor, path).partition("<main")[2].count("data-live") == 0
    assert 'id="list" data-live' in text(visitor, "/nodes")


@pytest.mark.parametrize("wrong", ["from=yesterday", "to=0001-01-01T00:00%2B14:00", "result=bad"])
def test_a_filter_that_is_not_understood_is_an_error(visitor: TestClient, wrong: str) -> None:
    assert visitor.get(f"/runs?{wrong}").status_code == 400


def test_many_resources_fold(visitor: TestClient, site: Site) -> None:
    many = tuple(replace(MOTD, type="File", title=f"/{number}") for number in range(30))
    run = summary("web01", site.now() - 500, outcome=Kind.CHANGED, resources=many, more=70)
    summarise(site, run)
    page = text(visitor, "/runs?node=web01")
    assert "<summary>25 more</summary>" in page
    assert "and 70 that the dashboard does not list" in page
