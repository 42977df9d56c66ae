"""Pictures of plans and kicks in a real Chromium: nothing overlaps, in light and in dark."""

from dataclasses import replace
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from localpuppet.fleet.inventory.entry import CatalogQuery, InventoryEntry
from localpuppet.rollout.site import EnvironmentSite as PlannedSite
from localpuppet.web.dashboard.inventory_questions import SiteInventory
from tests.fleet.inventory.entries import entry
from tests.web.dashboard.browser.chromium import Browser
from tests.web.dashboard.site import Served, Site


def shop(webs: int) -> dict[str, Any]:
    """Return the applications of a shop: databases, web servers, balancers, a monitor."""
    pages = [f"http/web{number}" for number in range(webs)]
    parts: dict[str, Any] = {
        "database": {"node": "db01.example.com", "produces": ["sql/shop"]},
        "balancer": {"node": "lb01.example.com", "consumes": pages, "produces": ["https/shop"]},
        "monitor": {
            "node": "mon01.example.com",
            "consumes": ["sql/shop", pages[0], "https/shop"],
        },
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
def test_nothing_overlaps_in_a_picture_of_kicks(
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
