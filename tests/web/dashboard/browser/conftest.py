"""A dashboard, and a browser that has opened it."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from localpuppet.fleet.inventory.entry import CatalogQuery
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.node.releases.comparison import NameDifference
from localpuppet.node.runs.holds import rollout_owner
from tests.fleet.inventory.entries import entry
from tests.rigs.waiting import PATIENCE
from tests.web.dashboard.browser.chromium import ARGUMENTS, EVIL, PROGRAM, Browser, theirs
from tests.web.make import MOTD, Served, Site, decided, staged, status, summarise, summary


@pytest.fixture(scope="session")
def driver() -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    for argument in ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    # Named, so that nothing looks for another one in the network.
    options.binary_location = PROGRAM
    driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    driver.set_page_load_timeout(PATIENCE)
    driver.set_script_timeout(PATIENCE)
    yield driver
    driver.quit()


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path)
    now = site.now()
    hold = {"owner": "alice", "reason": "migration", "since": "", "until": None}
    bobs = {"owner": rollout_owner("choria=bob", theirs(site)), "reason": "x", "since": ""}
    site.tell(
        status("web01", now - 60, last_run={"outcome": "changed"}),
        status("lb01", now - 9000, state="on hold", holds=[hold]),
        status("db01", now - 90, state="on hold", holds=[{**bobs, "until": "2999-01-01T00:00Z"}]),
    )
    drifting = replace(MOTD, corrective_change=True)
    summarise(
        site, summary("web01", now - 86400, outcome=Kind.CHANGED, resources=(drifting,) * 7, more=1)
    )
    site.list_(
        entry("web01", at=now, roles=("web",)),
        entry("lb01", at=now, roles=("lb",), queries=(CatalogQuery(text="role=web", digest="x"),)),
    )
    decided(site)
    site.staged = [staged("web/tags/r7", "aa" * 32), staged("web/tags/r9", "dd" * 32)]
    site.differences = {
        "dependencies": NameDifference(added=(), removed=(), changed={"module ntp": "v1 → v2"}),
        "files": NameDifference(added=(f"web/{EVIL}",), removed=(), changed={}),
    }
    return site


@pytest.fixture
def browser(driver: webdriver.Chrome, site: Site) -> Iterator[Browser]:
    with Served(site) as served:
        browser = Browser(driver, served)
        browser.asked()
        browser.problems()
        yield browser
        driver.get("about:blank")
