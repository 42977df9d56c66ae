"""The chart of runs in a real Chromium: what a click on a bar and on a rollout's marker opens."""

from datetime import UTC, datetime

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.node.runs.holds import rollout_owner
from localpuppet.web.dashboard.activity import RANGES
from tests.web.dashboard.browser.chromium import Browser
from tests.web.dashboard.past import summarise, summary
from tests.web.dashboard.site import Site, status

# Where the centre of a bar is in the time that the bar is for: it does not fill its place.
CENTRE = 0.43
WIDTHS = (390, 1024, 1440)


def marked(site: Site, word: str) -> str:
    """Have a run fail, and a rollout start at the centre of the run's bar; return the rollout."""
    range_ = RANGES[word]
    at = range_.begin(site.now()) + (range_.bars - 9 + CENTRE) * range_.bar
    rollout = f"{datetime.fromtimestamp(at, UTC):%Y%m%dT%H%M%SZ}-0c0c"
    owner = rollout_owner("choria=bob", rollout)
    hold = {"owner": owner, "reason": "x", "since": "", "until": "2999-01-01T00:00Z"}
    site.tell(status("db01", site.now() - 90, state="on hold", holds=[hold]))
    summarise(site, summary("db01", at, outcome=Kind.FAILED, reason="1 resource failed"))
    return rollout


@pytest.mark.parametrize("word", RANGES)
def test_a_marker_leaves_the_clicks_on_its_bar_to_the_bar(
    browser: Browser, site: Site, word: str
) -> None:
    rollout = ""

    def past() -> None:
        nonlocal rollout
        rollout = marked(site, word)

    browser.served.do(past)
    for width in WIDTHS:
        browser.wide(width)
        browser.go(f"/?range={word}")
        off = browser.script(
            "const middle = (area) => area.left + area.width / 2;"
            "const area = (selector) => middle(document.querySelector(selector)"
            "  .getBoundingClientRect());"
            f"return area(\"a[href='/rollouts/{rollout}'] line\") - area('rect.failed')"
        )
        assert abs(off) < 1, f"at {width} the marker is {off} pixels beside the bar's centre"
        browser.driver.find_element(By.CSS_SELECTOR, "rect.failed").click()
        assert browser.text("h1").startswith("Runs")
        assert "1 resource failed" in browser.text("#list")
        browser.go(f"/?range={word}")
        selector = f"a[href='/rollouts/{rollout}'] circle"
        browser.driver.find_element(By.CSS_SELECTOR, selector).click()
        browser.until(f"return location.pathname === '/rollouts/{rollout}'")
    assert browser.problems() == []


def test_the_keyboard_opens_a_marked_rollout(browser: Browser, site: Site) -> None:
    rollout = ""

    def past() -> None:
        nonlocal rollout
        rollout = marked(site, "90d")

    browser.served.do(past)
    browser.go("/?range=90d")
    summaries = browser.driver.find_elements(By.CSS_SELECTOR, "#strip summary")
    rollouts = next(one for one in summaries if one.text == "Rollouts in this time")
    rollouts.send_keys(Keys.ENTER)
    browser.driver.switch_to.active_element.send_keys(Keys.TAB)
    link = browser.driver.switch_to.active_element
    while not str(link.get_dom_attribute("href")).endswith(rollout):
        link.send_keys(Keys.TAB)
        link = browser.driver.switch_to.active_element
        assert link.tag_name == "a", f"no link of the rollout below {rollouts.text}"
    link.send_keys(Keys.ENTER)
    browser.until(f"return location.pathname === '/rollouts/{rollout}'")
