"""The search of the documentation site, in a real browser."""

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

from tests.rigs.long import LONG
from tests.rigs.node import REPOSITORY
from tests.rigs.waiting import PATIENCE
from tests.web.dashboard.browser.conftest import driver

__all__ = ["driver"]
# To build the site takes half a minute of a processor.
pytestmark = LONG
FOUND = """
    if (!document.querySelector('.search-summary')?.innerText.includes('found')) return null;
    return [...document.querySelectorAll('ul.search > li > a')].map((a) => a.getAttribute('href'));
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the URL of the site, with a theme that takes a third of the time to build."""
    pages = tmp_path_factory.mktemp("site")
    options = ["-q", "-b", "html", "-D", "html_theme=basic", "-d", f"{pages}/.doctrees"]
    subprocess.run(
        [sys.executable, "-m", "sphinx", *options, REPOSITORY / "docs", pages], check=True
    )
    handler = partial(SimpleHTTPRequestHandler, directory=str(pages))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("query", "page"),
    {
        "install": "start/install.html",
        "uninstall": "start/install.html#uninstall",
        "noop": "how-to/see-what-would-change.html",
        "rollback": "how-to/roll-back.html",
        "drift": "reference/dashboard.html",
        "puppetdb": "how-to/serve-the-puppetdb-api.html",
        "webhook": "how-to/deploy-on-push.html",
        "secrets": "reference/secrets.html",
        "upgrade": "operate/upgrading.html",
        "cron": "how-to/schedule-runs.html",
    }.items(),
)
def test_a_search_finds_the_page_that_a_user_means(
    driver: webdriver.Chrome, site: str, query: str, page: str
) -> None:
    driver.get(f"{site}/search.html?q={query}")
    found = WebDriverWait(driver, PATIENCE, poll_frequency=0.05).until(
        lambda _: driver.execute_script(FOUND)
    )
    assert found[0] == page
    decisions = [place for place, name in enumerate(found) if name.startswith("adr/")]
    others = [place for place, name in enumerate(found) if name.startswith(("start/", "how-to/"))]
    assert not decisions or max(others, default=0) < min(decisions)
