"""Live updates in a real Chromium: nothing moves that the reader uses, and nothing is lost."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from localpuppet.base.formats.names import NodeName, RolloutId
from localpuppet.rollout.journal import Journals
from tests.rollout.make import rollout_over
from tests.web.dashboard.browser.chromium import Browser
from tests.web.make import PlayedActor, Served, Site, a_rollout, status

# A list that the next run of any node changes.
BUSY = "/nodes?sort=-finished_at"
ORDER = "return [...document.querySelectorAll('tr[id]')].map((row) => row.id.slice(4))"
FETCHES = (
    "return performance.getEntriesByType('resource')"
    ".filter((one) => one.name === location.href).length"
)
CLICKED = """
    window.clicked = [];
    document.addEventListener("click", (event) => {
      event.preventDefault();
      window.clicked.push(event.target.closest("a")?.textContent);
    }, true);
"""
LINK = """
    const link = document.querySelector(arguments[0]);
    if (arguments[1]) link.scrollIntoView({ block: "center" });
    const box = link.getBoundingClientRect();
    const [x, y] = [box.x + box.width / 2, box.y + box.height / 2].map(Math.round);
    return [x, y, document.elementFromPoint(x, y)?.closest("a")?.textContent];
"""


@pytest.fixture
def busy(driver: webdriver.Chrome, tmp_path: Path) -> Iterator[Browser]:
    """Lend a browser with a list of forty nodes, of which each run changes the order."""
    site = Site(tmp_path)
    site.actor = PlayedActor()
    site.tell(*(status(f"n{number:02}", site.now() - 9000 + number) for number in range(40)))
    with Served(site) as served:
        browser = Browser(driver, served)
        browser.wide(1280)
        browser.go(BUSY)
        yield browser
        driver.get("about:blank")


# More than the links and fields above a row.
MAX_TABS = 400


class Mouse:
    """The mouse of a browser."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self.at = (0, 0)

    def _send(self, kind: str, **more: Any) -> None:
        event = {"type": kind, "x": self.at[0], "y": self.at[1], **more}
        self._browser.driver.execute_cdp_cmd("Input.dispatchMouseEvent", event)

    def move(self, selector: str, *, scroll: bool = False) -> str:
        """Move to the middle of an element; return the text of the link at that place."""
        *place, under = self._browser.driver.execute_script(LINK, selector, scroll)
        self.at = place[0], place[1]
        self._send("mouseMoved")
        return str(under)

    def leave(self) -> None:
        """Move to the top of the page."""
        self.move(".brand")

    def click(self) -> None:
        self._send("mousePressed", button="left", clickCount=1)
        self._send("mouseReleased", button="left", clickCount=1)


class Runs:
    """Ends runs of the nodes of a site, each later than all before."""

    def __init__(self, browser: Browser) -> None:
        self._served = browser.served
        self._at = self._served.site.now() - 5000

    def end(self, node: str, **last_run: Any) -> None:
        self._at += 1
        self._served.do(self._served.site.tell, status(node, self._at, last_run=last_run))


def fetched(browser: Browser) -> None:
    """Wait until the page has fetched and applied its update."""
    before = browser.script(FETCHES)
    browser.until(f"{FETCHES} > {before}")
    browser.driver.execute_async_script("setTimeout(arguments[0])")


def waits(browser: Browser, text: str) -> None:
    browser.until(
        "const button = document.getElementById('updates');"
        f"return !button.hidden && button.textContent === {text!r}"
    )


def test_each_of_80_clicks_opens_the_row_under_the_pointer(busy: Browser) -> None:
    mouse, runs = Mouse(busy), Runs(busy)
    busy.script(CLICKED)
    meant = []
    for number in range(80):
        node = f"n{number * 27 % 40:02}"
        meant.append(mouse.move(f"#row-{node} a", scroll=True))
        runs.end(node)
        if number % 40 == 10:  # as long as a person takes
            runs.end(f"n{number * 11 % 40:02}")
            fetched(busy)
        mouse.click()
        if number % 40 == 39:
            busy.script("scrollTo(0, 0)")
            mouse.leave()
            busy.until(f"return (() => {{ {ORDER} }})()[0] === '{node}'")
    assert busy.script("return window.clicked") == meant
    assert len(set(meant)) == 40


def test_updates_that_move_no_row_are_shown_at_once_and_the_rest_on_request(busy: Browser) -> None:
    mouse, runs = Mouse(busy), Runs(busy)
    before = busy.script(ORDER)
    mouse.move("#row-n39 a")
    runs.end("n10", outcome="failed", category="no_report")
    runs.end("n11")
    waits(busy, "2 updates: show")
    assert busy.script(ORDER) == before
    assert "compile failed" in busy.text("#row-n10")
    mouse.move("#updates")
    runs.end("n12")
    waits(busy, "3 updates: show")
    assert busy.script(ORDER) == before
    mouse.click()
    assert busy.script(ORDER)[:4] == ["n12", "n11", "n10", "n39"]
    # The pointer is still on the button, and not on a row below it.
    assert busy.text("#updates") == "Up to date"
    mouse.leave()
    busy.until("return document.getElementById('updates').hidden")


def test_updates_wait_for_the_keyboard_and_are_shown_with_it(busy: Browser) -> None:
    runs = Runs(busy)
    before = busy.script(ORDER)
    busy.script("document.querySelector('.sorted thead tr th:last-of-type').focus()")
    link = busy.driver.find_element(By.CSS_SELECTOR, "#row-n39 a")
    link.send_keys(Keys.NULL)
    runs.end("n20")
    runs.end("new01")
    waits(busy, "2 updates: show")
    assert busy.script(ORDER) == before
    for _ in range(MAX_TABS):
        busy.driver.switch_to.active_element.send_keys(Keys.SHIFT, Keys.TAB)
        if busy.script("return document.activeElement.id") == "updates":
            busy.driver.switch_to.active_element.send_keys(Keys.ENTER)
            assert busy.script("return document.activeElement.closest('#list') !== null")
            break
        # A slow keyboard stays too long on the fields between: the list is not in use there.
        if busy.script("return document.getElementById('updates').hidden"):
            break
    assert busy.script(ORDER)[:3] == ["new01", "n20", "n39"]
    assert busy.script("return document.getElementById('updates').hidden")


def test_a_removed_row_stays_until_the_pointer_leaves(browser: Browser, site: Site) -> None:
    browser.wide(1280)
    browser.go("/nodes?is=on+hold")
    mouse = Mouse(browser)
    mouse.move("#row-db01 a")
    browser.served.do(site.tell, status("db01", site.now()))
    waits(browser, "1 update: show")
    assert browser.script(ORDER) == ["db01", "lb01"]
    mouse.leave()
    browser.until(f"return (() => {{ {ORDER} }})().join() === 'lb01'")
    assert browser.script("return document.getElementById('updates').hidden")


def test_selected_text_keeps_the_order_and_stays_selected(busy: Browser) -> None:
    runs = Runs(busy)
    before = busy.script(ORDER)
    busy.script("getSelection().selectAllChildren(document.querySelector('#row-n38 th'))")
    runs.end("n38")
    waits(busy, "1 update: show")
    assert busy.script(ORDER) == before
    assert busy.script("return getSelection().toString()") == "n38"
    busy.script("getSelection().removeAllRanges()")
    busy.until(f"return (() => {{ {ORDER} }})()[0] === 'n38'")


def test_chosen_rows_keep_the_order_and_stay_chosen(busy: Browser) -> None:
    runs = Runs(busy)
    before = busy.script(ORDER)
    busy.driver.find_element(By.CSS_SELECTOR, "#row-n37 input").click()
    Mouse(busy).leave()
    runs.end("n36")
    waits(busy, "1 update: show")
    assert busy.script(ORDER) == before
    busy.driver.find_element(By.ID, "updates").click()
    assert busy.script(ORDER)[0] == "n36"
    assert busy.script("return document.querySelector('#row-n37 input').checked")


def test_moving_rows_keep_the_entered_text_and_the_scroll_position(busy: Browser) -> None:
    runs = Runs(busy)
    busy.script(
        "window.row = document.getElementById('row-n00'); scrollTo(0, 300);"
        "document.getElementById('q').value = 'role=web';"
    )
    runs.end("n00")
    busy.until(f"return (() => {{ {ORDER} }})()[0] === 'n00'")
    assert busy.script("return window.row === document.getElementById('row-n00')")
    assert busy.script("return [scrollY, document.getElementById('q').value]") == [300, "role=web"]
    busy.go("/")
    busy.driver.find_element(By.CSS_SELECTOR, "#strip summary").click()
    Mouse(busy).leave()
    runs.end("n01", outcome="failed")
    busy.until("return document.querySelector('#failed').innerText.includes('n01')")
    assert busy.script("return document.querySelector('#strip details').open")


def test_a_part_appears_with_its_first_content_and_leaves_with_its_last(busy: Browser) -> None:
    site = busy.served.site
    began = a_rollout(
        id=RolloutId.parse("20261120T135900Z-00aa"),
        groups=((NodeName.parse("n01"),),),
        title="shop",
    )
    parts = "return [...document.querySelectorAll('main [data-live]')].map((part) => part.id)"
    busy.go("/")
    before = busy.script(parts)
    journals = Journals(site.directory / "rollouts")
    journal = journals.begin(began, at="2026-11-20T13:59:00Z")
    busy.served.do(site.fleet.stir)
    busy.until("return document.getElementById('rollouts') !== null")
    assert busy.script(parts) == ["rollouts", *before]
    journal.append(rollout_over(), at="2026-11-20T14:00:00Z")
    journal.close()
    busy.served.do(site.fleet.stir)
    busy.until("return document.getElementById('rollouts') === null")


def test_three_tabs_show_the_same(busy: Browser) -> None:
    driver, runs = busy.driver, Runs(busy)
    first = driver.current_window_handle
    for _ in range(2):
        driver.switch_to.new_window("tab")
        busy.go(BUSY)
    for node, tab in zip(("n05", "n06", "n07"), driver.window_handles, strict=True):
        driver.switch_to.window(tab)
        runs.end(node)
        busy.until(f"return (() => {{ {ORDER} }})()[0] === '{node}'")
    for tab in driver.window_handles:
        driver.switch_to.window(tab)
        busy.until(f"return (() => {{ {ORDER} }})()[0] === 'n07'")
        if tab != first:
            driver.close()
    driver.switch_to.window(first)
