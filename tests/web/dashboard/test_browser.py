"""The page in a real Chromium: each view, what is live, hostile values, small screens, keys."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from axe_selenium_python import Axe
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from localpuppet.base.formats.values import Json
from localpuppet.fleet.inventory.entry import CatalogQuery, InventoryEntry
from localpuppet.node.releases.difference import NameDifference
from localpuppet.node.runs.hold import rollout_owner
from localpuppet.rollout.plans.site import EnvironmentSite as PlannedSite
from localpuppet.web.dashboard.asking import SiteInventory
from tests.fleet.inventory.entries import entry
from tests.web.dashboard.site import DIFFERENCE, PlayedActor, Served, Site, run_id, staged, status

PATIENCE = 60
EVIL = "<img src=x onerror=pwned=1><script>pwned=1</script><svg onload=pwned=1>\u202e\u2066"
ARGUMENTS = (
    "--headless=new",
    # Tests run as root, whom Chromium's sandbox refuses; and nothing but our own page is loaded.
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
)


class Browser:
    """A browser that has used the link, and what it did."""

    def __init__(self, driver: webdriver.Chrome, served: Served) -> None:
        self.driver = driver
        self.served = served
        driver.get(served.link)
        self.until("return location.pathname === '/'")

    def go(self, path: str) -> None:
        self.driver.get(self.served.url + path)

    def script(self, text: str) -> Any:
        return self.driver.execute_script(text)

    def until(self, text: str) -> None:
        WebDriverWait(self.driver, PATIENCE, poll_frequency=0.05).until(lambda _: self.script(text))

    def text(self, selector: str) -> str:
        return self.driver.find_element(By.CSS_SELECTOR, selector).text

    def wide(self, width: int) -> None:
        size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    def asked(self) -> set[str]:
        """Return where requests went since the last look."""
        found = set()
        for line in self.driver.get_log("performance"):  # type: ignore[no-untyped-call]
            message = json.loads(line["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                found.add(message["params"]["request"]["url"])
        return found

    def problems(self) -> list[str]:
        """Return what scripts and policies complained of since the last look."""
        return [line["message"] for line in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]


@pytest.fixture(scope="module")
def driver() -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    for argument in ARGUMENTS:
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    # Named, so that nothing looks for another one in the network.
    options.binary_location = "/usr/bin/chromium"
    driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    driver.set_page_load_timeout(PATIENCE)
    yield driver
    driver.quit()


def theirs(site: Site) -> str:
    """Return the id of a rollout of which only a node tells."""
    return site.clock.now().strftime("%Y%m%dT%H%M%SZ-0b0b")


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path)
    now = site.now()
    hold = {"owner": "alice", "reason": "migration", "since": "", "until": None}
    bobs = {"owner": rollout_owner("choria=bob", theirs(site)), "reason": "x", "since": ""}
    site.tell(
        status("web01", now - 60, last={"outcome": "changed"}),
        status("lb01", now - 9000, state="on hold", holds=[hold]),
        status("db01", now - 90, state="on hold", holds=[{**bobs, "until": "2999-01-01T00:00Z"}]),
    )
    site.list_(
        entry("web01", at=now, roles=("web",)),
        entry("lb01", at=now, roles=("lb",), queries=(CatalogQuery(text="role=web", digest="x"),)),
    )
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


def views(site: Site, node: str = "web01", ago: float = 60) -> list[str]:
    run = run_id(site.now() - ago)
    return [
        "/",
        "/nodes",
        "/failures",
        "/releases",
        DIFFERENCE,
        "/rollouts",
        f"/rollouts/{theirs(site)}",
        "/plan",
        f"/nodes/{node}",
        f"/nodes/{node}/runs/{run}",
        "/kicks",
    ]


def test_each_view_loads_without_a_complaint_or_a_request_elsewhere(
    browser: Browser, site: Site
) -> None:
    for path in [*views(site), "/?q=role%3Dweb", "/nodes?name=zzz"]:
        browser.go(path)
        assert browser.text("h1")
        for width in (360, 1280, 3840):
            browser.wide(width)
            assert browser.script("return document.documentElement.scrollWidth <= innerWidth"), (
                f"{path} is wider than {width}"
            )
    assert browser.problems() == []
    assert {url for url in browser.asked() if not url.startswith(browser.served.url)} <= {
        "about:blank"
    }


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(browser: Browser, site: Site, scheme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    axe = Axe(browser.driver)
    for path in [*views(site), "/nodes?sort=x", "/?q=role%3D"]:
        browser.go(path)
        axe.inject()
        found = axe.run()
        assert found["violations"] == [], f"{path}: {axe.report(found['violations'])}"
        assert "color-contrast" in [one["id"] for one in found["passes"]]


def test_a_change_is_there_without_a_reload(browser: Browser, site: Site) -> None:
    browser.go("/nodes")
    browser.script("window.same = true")
    browser.driver.find_element(By.CSS_SELECTOR, "#row-web01 a").send_keys(Keys.NULL)
    browser.script("document.querySelector('#row-web01 a').focus()")
    failed = {"outcome": "failed", "category": "no_report"}
    browser.served.do(site.tell, status("web01", site.now(), last=failed))
    browser.until(
        "return document.querySelector('#row-web01').innerText.includes('compile failed')"
    )
    browser.served.do(site.tell, status("new01", site.now()))
    browser.until("return document.querySelector('#row-new01') !== null")
    assert browser.script("return window.same")
    assert browser.script("return document.activeElement.textContent") == "web01"
    # The overview counts it, and so does the node's own page.
    browser.go("/nodes/new01")
    browser.served.do(site.leave, "new01")
    browser.until("return document.querySelector('#node .state').textContent === 'silent'")
    assert browser.problems() == []


def test_outages_are_said_and_end(browser: Browser, site: Site) -> None:
    browser.go(f"/nodes/web01/runs/{run_id(site.now() - 60)}?report=1")
    browser.served.do(site.fleet.lost, "connection refused")
    browser.until("return document.querySelector('#bus.away') !== null")
    assert len(site.asked) == 1  # the node is not asked again because something changed
    browser.go("/")
    assert "14:00 UTC, the bus is away: connection refused" in browser.text("#bus")
    browser.served.do(site.fleet.answered)
    browser.until("return document.querySelector('#bus.away') === null")
    browser.served.do(browser.served.leave.set)
    browser.until("return !document.querySelector('#cut').hidden")
    assert "3 nodes" in browser.text("h1")


def test_hostile_values_do_nothing(browser: Browser, site: Site) -> None:
    long = EVIL + "x" * 10_000_000
    hold = {"owner": EVIL, "reason": long, "until": None}
    said = status("evil", site.now(), cause=long, holds=[hold], last={"app": EVIL, "reason": long})
    facts = {"big": long, EVIL: {EVIL: [EVIL]}}
    listed = entry("evil", at=site.now(), roles=(EVIL,), facts=facts, kicks=(EVIL,))

    def tell() -> None:
        site.tell(said)
        site.list_(listed)

    resource: Json = {
        "ref": long,
        "file": EVIL,
        "line": 1,
        "seconds": 1,
        "events": [{"message": EVIL}],
    }
    site.reports["evil"] = {"report": True, "failed": [resource]}
    browser.served.do(tell)
    run = f"/nodes/evil/runs/{run_id(site.now())}?report=1"
    for path in [*views(site, "evil", ago=0), run, "/kicks.svg", "/nodes/evil?fact=%3Cimg"]:
        browser.go(path)
        assert browser.script("return window.pwned") is None, path
        assert browser.script("return document.querySelector('[onerror], [onload]')") is None, path
        assert "\u202e" not in browser.driver.page_source, path
        assert len(browser.driver.page_source) < 100_000, path
    assert browser.problems() == []
    assert all(url.startswith(browser.served.url) for url in browser.asked())


def test_the_page_is_used_with_keys_and_times_in_either_zone(browser: Browser) -> None:
    browser.wide(1280)
    browser.driver.execute_cdp_cmd(
        "Emulation.setTimezoneOverride", {"timezoneId": "America/New_York"}
    )
    browser.go("/nodes?name=web01")
    body = browser.driver.find_element(By.TAG_NAME, "body")
    body.send_keys(Keys.TAB)
    assert browser.script("return document.activeElement.className") == "skip"
    assert "13:59 UTC" in browser.text("#row-web01")
    browser.script("document.querySelector('#zone').focus()")
    browser.driver.switch_to.active_element.send_keys(Keys.ENTER)
    assert "08:59" in browser.text("#row-web01")
    browser.go("/nodes?name=web01")
    assert "08:59" in browser.text("#row-web01")
    browser.driver.find_element(By.ID, "zone").click()
    assert "13:59 UTC" in browser.text("#row-web01")
    browser.go("/")
    held = browser.driver.find_element(By.CSS_SELECTOR, "#held a[href^='/rollouts/']")
    held.send_keys(Keys.ENTER)
    browser.until("return location.pathname.startsWith('/rollouts/')")
    assert "db01" in browser.text("#told")


def test_a_picture_is_dragged_and_changes_its_size(browser: Browser, site: Site) -> None:
    asks = (CatalogQuery(text='servers_with_role("web")', digest="x"),)
    listed = [
        entry("web01", at=site.now(), roles=("web",)),
        entry("lb01", at=site.now(), roles=("lb",), queries=asks),
    ]
    browser.served.do(site.list_, *listed)
    browser.wide(360)
    browser.go("/kicks")
    width = "return document.querySelector('.picture svg').getBoundingClientRect().width"
    assert browser.script(width) > 400
    whole = browser.script(width)
    browser.driver.find_element(By.CSS_SELECTOR, "[data-zoom='1.25']").click()
    assert browser.script(width) > whole
    browser.driver.find_element(By.CSS_SELECTOR, ".picture").send_keys("-", "-")
    assert browser.script(width) < whole
    browser.driver.find_element(By.CSS_SELECTOR, "[data-zoom='1.25']").click()
    at = "return document.querySelector('.picture').scrollLeft"
    before = browser.script(at)
    held = ActionChains(browser.driver).click_and_hold(
        browser.driver.find_element(By.CSS_SELECTOR, ".picture")
    )
    held.move_by_offset(-60, 0).release().perform()
    assert browser.script(at) > before
    browser.driver.find_element(By.CSS_SELECTOR, "[data-zoom='0']").click()
    assert browser.script(width) < 360
    browser.driver.find_element(By.CSS_SELECTOR, ".picture a[href='/nodes/web01']").click()
    browser.until("return location.pathname === '/nodes/web01'")
    assert browser.problems() == []


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


def test_a_deed_is_confirmed_and_a_refusal_is_shown(driver: webdriver.Chrome, site: Site) -> None:
    actor = site.actor = PlayedActor()
    with Served(site) as served:
        browser = Browser(driver, served)
        browser.problems()
        browser.wide(360)
        for refuses, words in (("", "web01 accepted"), ("policy says no", "policy says no")):
            actor.refuses = refuses
            browser.go("/nodes/web01")
            driver.find_element(By.LINK_TEXT, "Put on hold").click()
            assert "No run starts there" in browser.text("main")
            axe = Axe(driver)
            axe.inject()
            assert axe.run()["violations"] == []
            driver.find_element(By.ID, "message").send_keys("disk")
            driver.find_element(By.CSS_SELECTOR, "button.do").click()
            browser.until(f"return document.body.innerText.includes({json.dumps(words)})")
            assert browser.script("return document.documentElement.scrollWidth <= innerWidth")
        assert [str(deed) for deed in actor.deeds] == ["hold (for 2h: disk)"] * 2
        # A reload does nothing again: its token was used.
        driver.refresh()
        browser.until("return document.body.innerText.includes('Nothing was done')")
        assert len(actor.deeds) == 2
        driver.get("about:blank")


class Neighbour(ThreadingHTTPServer):
    """What another user of this machine serves on a port of his own: it keeps the cookies."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Listener)
        self.cookies: list[str] = []
        self.thread = threading.Thread(target=self.serve_forever)

    def __enter__(self) -> "Neighbour":
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.thread.join(PATIENCE)
        self.server_close()


class Listener(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Neighbour)
        self.server.cookies.append(self.headers.get("cookie", ""))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def test_what_another_user_serves_on_this_machine_gets_no_cookie(browser: Browser) -> None:
    driver = browser.driver
    with Neighbour() as neighbour:
        for host in ("127.0.0.1", "localhost", "other.localhost"):
            driver.get(f"http://{host}:{neighbour.server_port}/")
        assert set(neighbour.cookies) == {""}
        browser.go("/nodes")
        assert "web01" in browser.text("main")
        # So it was at an address that everybody knows, and so it is for who opens that.
        plain = f"http://127.0.0.1:{browser.served.site.port}/"
        entrance = browser.served.way.entrance
        assert entrance is not None
        driver.get(f"{plain}enter?key={entrance.sessions.link()}")
        browser.until("return location.pathname === '/'")
        driver.get(f"http://127.0.0.1:{neighbour.server_port}/")
        assert any(entrance.cookie in one for one in neighbour.cookies)
        driver.delete_all_cookies()


def test_another_site_gets_nothing_and_nor_does_who_has_no_session(browser: Browser) -> None:
    driver = browser.driver
    browser.go("/nodes")
    driver.get("about:blank")
    told = """const done = arguments[1];
        fetch(arguments[0], { credentials: 'include' })
            .then((answer) => done(String(answer.status)), () => done('refused'));"""
    assert driver.execute_async_script(told, browser.served.url) == "refused"
    browser.go("/nodes")
    driver.delete_all_cookies()
    browser.go("/nodes")
    assert "You have no session here" in browser.text("h1")
