"""A dashboard of five nodes, and a visitor."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from localpuppet.base.formats.times import show_time
from localpuppet.fleet.inventory.entry import CatalogQuery
from tests.fleet.inventory.entries import entry
from tests.web.make import Site, status


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path)
    now = site.now()
    until = show_time(datetime.fromtimestamp(now + 3600, UTC))
    hold = {"owner": "alice", "reason": "database migration", "since": "", "until": until}
    site.tell(
        status("web01", now - 60, last_run={"outcome": "changed"}),
        status("web02", now - 90, last_run={"outcome": "failed", "category": "no_report"}),
        status("db01", now - 9000),
        status("lb01", now - 30, state="on hold", holds=[hold]),
        {"node": "eve", "state": "not trusted", "reason": "signed by mallory"},
    )
    site.list_(
        entry("web01", at=now - 60, roles=("web",)),
        entry(
            "lb01",
            at=now - 30,
            roles=("lb",),
            queries=(CatalogQuery(text='servers_with_role("web")', digest="x"),),
        ),
    )
    return site


@pytest.fixture
def visitor(site: Site) -> Iterator[TestClient]:
    with site.visitor() as client:
        yield client
