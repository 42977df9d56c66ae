"""Pictures, the chart of runs and the page of a preview in a real Chromium."""

import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from localpuppet.fleet.inventory.entry import CatalogQuery, InventoryEntry
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.node.preview.drawing import preview_html
from localpuppet.node.preview.result import PreviewResult
from localpuppet.node.runs.holds import rollout_owner
from localpuppet.rollout.site import EnvironmentSite as PlannedSite
from localpuppet.web.dashboard.activity import RANGES
from localpuppet.web.dashboard.inventory_questions import SiteInventory
from tests.fleet.inventory.entries import entry
from tests.node.cli.preview.results import hostile, usual
from tests.rigs.waiting import PATIENCE
from tests.web.dashboard.browser.chromium import Browser, axe_finds_nothing
from tests.web.make import Served, Site, status, summarise, summary


def shop(webs: int) -> dict[str, Any]:
    """Return the applications of a shop: databases, web servers, balancers, a monitor."""
    pages = [f"http/web{number}" for number in range(webs)]
    parts: dict[str, Any] = {
        "database": {"node": "db01.example.com", "produces": ["sql/shop"]},
        "balancer": {"node": "lb01.example.com", "consumes": pages, "produces": ["https/shop"]},
        "monitor": {"node": "mon01.example.com", "consumes": ["sql/shop", pages[0], "https/shop"]},
    }
    for number, page in enumerate(pages):
        node = f"web{number:02}.example.com"
        parts[f"web{number}"] = {"node": node, "consumes": ["sql/shop"], "produces": [page]}
    return {"shop": parts}


def shards(pairs: int) -> dict[str, Any]:
    """Return pairs of nodes of which no two are equal."""
    parts: dict[str, Any] = {}
    for number in range(pairs):
        parts[f"db{number}"] = {"node": f"db{number:02}", "produces": [f"sql/{number}"]}
        parts[f"web{number}"] = {"node": f"web{number:02}", "consumes": [f"sql/{number}"]}
    return {"shards": parts}


def ring(roles: int, nodes: int) -> list[InventoryEntry]:
    """Return nodes of roles that kick the next role, and ask about the one after that."""
    return [
        entry(
            f"n{number:02}.example.com",
            at=0,
            roles=(f"role{number % roles}",),
            kicks=(f'role="role{(number + 1) % roles}"',),
            queries=(
                CatalogQuery(text=f'servers_with_role("role{(number + 2) % roles}")', digest="x"),
            ),
        )
        for number in range(nodes)
    ]


OVERLAPS = """
    const graph = document.querySelector('.graph');
    const area = (element) => element.getBoundingClientRect();
    const all = (selector) => [...graph.querySelectorAll(selector)];
    const meet = (a, b) => a.left < b.right && b.left < a.right
      && a.top < b.bottom && b.top < a.bottom;
    const boxes = all('.box rect').map(area);
    const labels = all('.edge text');
    const found = [];
    for (const box of all('.box')) {
      const around = area(box.querySelector('rect'));
      for (const text of box.querySelectorAll('text')) {
        const { left, right, top, bottom } = area(text);
        if (left < around.left || right > around.right
          || top < around.top || bottom > around.bottom)
          found.push(`'${text.textContent}' leaves its box`);
      }
    }
    boxes.forEach((box, number) => {
      if (boxes.some((other, next) => next > number && meet(box, other)))
        found.push('two boxes meet');
    });
    labels.forEach((label, number) => {
      const words = label.textContent;
      if (boxes.some((box) => meet(area(label), box))) found.push(`label '${words}' is on a box`);
      if (labels.some((other, next) => next > number && meet(area(label), area(other))))
        found.push(`label '${words}' is on another one`);
    });
    for (const path of all('.edge path:not(.tip)')) {
      const matrix = path.getScreenCTM();
      for (let at = 0; at < path.getTotalLength(); at += 3) {
        const point = path.getPointAtLength(at).matrixTransform(matrix);
        const on = (box) => point.x > box.left + 2 && point.x < box.right - 2
          && point.y > box.top + 2 && point.y < box.bottom - 2;
        if (boxes.some(on)) { found.push('an edge runs over a box'); break; }
      }
    }
    return { found, boxes: boxes.length, labels: labels.length };
"""


@pytest.mark.parametrize(
    ("applications", "nodes", "boxes", "labels"),
    [(shop(2), 5, 5, 7), (shop(47), 50, 5, 7), (shards(25), 50, 50, 25)],
    ids=["five nodes", "fifty with equal ones", "fifty different ones"],
)
def test_nothing_overlaps_in_a_plan(
    driver: webdriver.Chrome,
    site: Site,
    applications: dict[str, Any],
    nodes: int,
    boxes: int,
    labels: int,
) -> None:
    planned = PlannedSite.from_dict({"applications": applications}, where="site")
    site.known = SiteInventory(name="site.yaml", read=lambda: planned)
    with Served(site) as served:
        browser = Browser(driver, served)
        browser.wide(1280)
        browser.go("/plan")
        assert f"{nodes} nodes" in browser.text("#groups-h")
        shown = browser.script(OVERLAPS)
        assert shown == {"found": [], "boxes": boxes, "labels": labels}
        link = driver.find_element(By.CSS_SELECTOR, ".graph .box a")
        assert link.get_dom_attribute("href") == f"/nodes/{link.text}"
        driver.get("about:blank")


@pytest.mark.parametrize(("roles", "nodes"), [(5, 5), (12, 50)])
def test_no_overlap_in_a_picture_of_kicks(
    browser: Browser, site: Site, roles: int, nodes: int
) -> None:
    browser.served.do(site.list_, *[replace(one, at=site.now()) for one in ring(roles, nodes)])
    browser.wide(1280)
    browser.go("/kicks")
    shown = browser.script(OVERLAPS)
    assert shown == {"found": [], "boxes": roles, "labels": 2 * roles}


def test_a_picture_has_the_colours_of_its_reader(browser: Browser, site: Site) -> None:
    browser.served.do(site.list_, *[replace(one, at=site.now()) for one in ring(3, 3)])
    colours = []
    for scheme in ("light", "dark"):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        browser.go("/kicks")
        colours.append(
            browser.script(
                "return ['.paper', '.box rect', '.box .title', '.edge path'].map((one) => {"
                "  const style = getComputedStyle(document.querySelector(`.graph ${one}`));"
                "  return [style.fill, style.stroke].join(); })"
            )
        )
    light, dark = colours
    assert all(one != other for one, other in zip(light, dark, strict=True)), colours


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


@pytest.mark.parametrize(
    ("word", "widths"), [(word, WIDTHS if word == "90d" else WIDTHS[-1:]) for word in RANGES]
)
def test_a_marker_leaves_the_clicks_on_its_bar_to_the_bar(
    browser: Browser, site: Site, word: str, widths: Sequence[int]
) -> None:
    rollout = ""

    def past() -> None:
        nonlocal rollout
        rollout = marked(site, word)

    browser.served.do(past)
    for width in widths:
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


PAGE_WIDTHS = (380, 800, 1400)


def problems(driver: Any) -> list[Any]:
    """Return what the browser reported since the last call."""
    return list(driver.get_log("browser"))


def opened(driver: webdriver.Chrome, tmp_path: Path, result: PreviewResult) -> None:
    file = tmp_path / "preview.html"
    file.write_text(preview_html(result))
    problems(driver)
    driver.get(f"file://{file}")


def shown(driver: webdriver.Chrome, words: str) -> str:
    """Return the message of the page after a search."""
    field = driver.find_element("id", "words")
    field.clear()
    field.send_keys(words)
    deadline = time.monotonic() + PATIENCE
    while not (text := driver.find_element("id", "shown").text):
        assert time.monotonic() < deadline
    return text


def test_a_search_shows_nodes_resources_and_texts(driver: webdriver.Chrome, tmp_path: Path) -> None:
    opened(driver, tmp_path, usual())
    groups = driver.find_elements("css selector", ".group")
    assert shown(driver, "DB05 cron") == "2 of 18 shown"
    assert [group.is_displayed() for group in groups] == [False, True]
    assert problems(driver) == []


def test_on_paper_nothing_is_folded(driver: webdriver.Chrome, tmp_path: Path) -> None:
    opened(driver, tmp_path, usual())
    driver.find_element("css selector", "details[open] > summary").click()
    folded = "return document.querySelectorAll('details:not([open])').length"
    before = driver.execute_script(folded)
    assert before > 0
    driver.execute_script(
        f"addEventListener('beforeprint', () => document.title = (() => {{ {folded} }})())"
    )
    driver.print_page()
    assert driver.title == "0"
    assert driver.execute_script(folded) == before
    assert problems(driver) == []


def test_hostile_text_is_shown_at_every_width(driver: webdriver.Chrome, tmp_path: Path) -> None:
    for result in (usual(), hostile()):
        opened(driver, tmp_path, result)
        for width in PAGE_WIDTHS:
            driver.execute_cdp_cmd(
                "Emulation.setDeviceMetricsOverride",
                {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
            )
            wide = driver.execute_script("return document.documentElement.scrollWidth")
            assert wide <= width
        assert problems(driver) == []
        assert driver.find_elements("css selector", "img, a, iframe") == []
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_screen_reader_or_weak_eyes_can_read_it(driver: webdriver.Chrome, tmp_path: Path) -> None:
    opened(driver, tmp_path, usual())
    axe_finds_nothing(driver, "the preview")
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
