"""One small site for all tasks, and an operator who has opened its dashboard."""

from collections.abc import Iterator

import pytest
from selenium import webdriver

from tests.rigs.buses import sqlite
from tests.rigs.fleet_fixtures import fleet_on
from tests.web.dashboard.browser.tasks.small_site import Operator, SmallSite


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, puppet_probe: str) -> Iterator[SmallSite]:
    directory = tmp_path_factory.mktemp("site")
    for bus in sqlite(directory):
        for fleet in fleet_on(directory, bus, puppet_probe):
            site = SmallSite(fleet)
            yield site
            site.end()


@pytest.fixture(scope="module")
def dashboard(driver: webdriver.Chrome, site: SmallSite) -> str:
    """Open the dashboard, have all happen that the site is for; return the dashboard's address."""
    link = site.dashboard()
    driver.get(link)
    site.happens()
    return link.partition("/enter")[0]


@pytest.fixture
def operator(driver: webdriver.Chrome, dashboard: str) -> Iterator[Operator]:
    """An operator with the overview open."""
    yield Operator(driver, dashboard)
    driver.get("about:blank")
