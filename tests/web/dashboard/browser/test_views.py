"""The dashboard in a real Chromium: views, actions, hostile values, small screens, keys."""

import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from localpuppet.base.formats.names import NodeName
from localpuppet.base.formats.values import Json
from localpuppet.fleet.bus.bus_limits import MAX_ENTRY
from localpuppet.fleet.inventory.entry import CatalogQuery
from localpuppet.node.puppet.resources import ResourceResult
from localpuppet.rollout.events import Event, NodeResult, NodeRun, StagingEnded
from localpuppet.rollout.journal import Journals
from localpuppet.rollout.rollout_options import RolloutOptions
from localpuppet.rollout.rollout_view import page
from localpuppet.web.access.rules import kept_host_name
from tests.fleet.inventory.entries import entry
from tests.fleet.make import a_part
from tests.rigs.waiting import PATIENCE
from tests.rollout.make import AT, RELEASE, run_ended, runs_started
from tests.web.dashboard.browser.chromium import EVIL, Browser, axe_finds_nothing, theirs
from tests.web.make import (
    DIFFERENCE,
    PlayedActor,
    Served,
    Site,
    a_rollout,
    run_id,
    status,
    summarise,
    summary,
)


def views(site: Site, node: str = "web01", ago: float = 60) -> list[str]:
    run = run_id(site.now() - ago)
    return [
        "/",
        "/nodes",
        "/failures",
        "/releases",
        DIFFERENCE,
        "/rollouts",
        "/audit",
        f"/rollouts/{theirs(site)}",
        "/plan",
        f"/nodes/{node}",
        f"/nodes/{node}/runs/{run}",
        "/kicks",
        "/runs",
        "/drift",
        "/map",
        "/?range=90d",
        "/find?text=w",
        "/find?text=zzz",
        "/compare?a=web01&b=lb01",
    ]


WIDTHS = (360, 3840, 800, 1024, 1280)


def test_each_view_fits_and_has_no_complaint_or_outside_request(
    browser: Browser, site: Site
) -> None:
    for path in [*views(site), "/nodes?name=zzz", "/nodes?sort=x", "/?q=role%3Dweb", "/?q=role%3D"]:
        browser.go(path)
        assert browser.text("h1")
        for width in WIDTHS:
            browser.wide(width)
            assert browser.script("return document.documentElement.scrollWidth <= innerWidth"), (
                f"{path} is wider than {width}"
            )
        axe_finds_nothing(browser.driver, path)
    complaints = [one for one in browser.problems() if "400 (Bad Request)" not in one]
    assert complaints == []
    elsewhere = {url for url in browser.asked() if not url.startswith(browser.served.url)}
    assert elsewhere <= {"about:blank"}


def test_a_change_is_shown_without_a_reload(browser: Browser, site: Site) -> None:
    browser.go("/nodes")
    browser.script("window.same = true")
    browser.driver.find_element(By.CSS_SELECTOR, "#row-web01 a").send_keys(Keys.NULL)
    browser.script("document.querySelector('#row-web01 a').focus()")
    failed = {"outcome": "failed", "category": "no_report"}
    browser.served.do(site.tell, status("web01", site.now(), last_run=failed))
    browser.until(
        "return document.querySelector('#row-web01').innerText.includes('compile failed')"
    )
    assert browser.script("return document.activeElement.textContent") == "web01"
    browser.script("document.activeElement.blur()")
    browser.served.do(site.tell, status("new01", site.now()))
    browser.until("return document.querySelector('#row-new01') !== null")
    assert browser.script("return window.same")
    # The overview counts it, and so does the node's own page.
    browser.go("/nodes/new01")
    browser.served.do(site.leave, "new01")
    browser.until("return document.querySelector('#node .state').textContent === 'unresponsive'")
    assert browser.problems() == []


def test_outages_are_shown_until_they_end(browser: Browser, site: Site) -> None:
    browser.go(f"/nodes/web01/runs/{run_id(site.now() - 60)}?details=1")
    browser.served.do(site.fleet.lost, "connection refused")
    browser.until("return document.querySelector('#bus.away') !== null")
    assert len(site.asked) == 2  # the node is not asked again because something changed
    browser.go("/")
    assert "Last updated 14:00:00 UTC, the bus is unreachable: connection refused" in browser.text(
        "#bus"
    )
    browser.served.do(site.fleet.answered)
    browser.until("return document.querySelector('#bus.away') === null")
    browser.served.do(browser.served.leave.set)
    browser.until("return !document.querySelector('#cut').hidden")
    assert "3 nodes" in browser.text("h1")


def test_hostile_values_do_nothing(browser: Browser, site: Site) -> None:
    long = EVIL + "x" * 10_000_000
    hold = {"owner": EVIL, "reason": long, "until": None}
    said = status(
        "evil",
        site.now(),
        cause=long,
        holds=[hold],
        last_run=dict.fromkeys(("release", "reason"), EVIL[:-2]),
    )
    facts = {"big": long[: MAX_ENTRY - 10_000], EVIL: {EVIL: [EVIL]}}
    listed = entry("evil", at=site.now(), roles=(EVIL[:-2],), facts=facts, kicks=(EVIL[:-2],))

    def tell() -> None:
        site.tell(said)
        site.list_(listed)
        bad = a_part(
            f"File[{EVIL[:-2]}]",
            file=EVIL[:-2],
            status=ResourceResult.CHANGED,
            corrective_change=True,
        )
        summarise(site, summary("evil", site.now() - 9, cause=EVIL, reason=EVIL, resources=(bad,)))

    resource: Json = {
        "resource": long,
        "file": EVIL,
        "line": 1,
        "seconds": 1,
        "events": [{"message": EVIL}],
    }
    site.reports["evil"] = {"report": True, "failed": [resource]}
    browser.served.do(tell)
    run = f"/nodes/evil/runs/{run_id(site.now())}?details=1"
    for path in [*views(site, "evil", ago=0), run, "/kicks.svg", "/nodes/evil?fact=%3Cimg"]:
        browser.go(path)
        assert browser.script("return window.pwned") is None, path
        assert browser.script("return document.querySelector('[onerror], [onload]')") is None, path
        assert "\u202e" not in browser.driver.page_source, path
        assert len(browser.driver.page_source) < 100_000, path
    assert browser.problems() == []
    assert all(url.startswith(browser.served.url) for url in browser.asked())


def test_the_page_is_used_with_keys_and_times_in_either_zone(browser: Browser, site: Site) -> None:
    browser.wide(1280)
    browser.driver.execute_cdp_cmd(
        "Emulation.setTimezoneOverride", {"timezoneId": "America/New_York"}
    )
    at = datetime(2026, 11, 20, 3, 30, tzinfo=UTC).timestamp()
    browser.served.do(site.tell, status("app01", at), status("app02", at - 86400))
    browser.go("/nodes")
    body = browser.driver.find_element(By.TAG_NAME, "body")
    body.send_keys(Keys.TAB)
    assert browser.script("return document.activeElement.className") == "skip"
    utc = ["13:59:00 UTC", "03:30:00 UTC", "yesterday 03:30:00 UTC"]
    new_york = ["08:59:00 EST", "yesterday 22:30:00 EST", "2026-11-18 22:30:00 EST"]
    shown = "return ['web01', 'app01', 'app02'].map("
    cell = "[data-label=Finished] time.when"
    shown += f"(node) => document.querySelector(`#row-${{node}} {cell}`).textContent)"
    assert browser.script(shown) == utc
    browser.script("document.querySelector('#zone').focus()")
    browser.driver.switch_to.active_element.send_keys(Keys.ENTER)
    assert browser.script(shown) == new_york
    browser.go("/nodes")
    assert browser.script(shown) == new_york
    browser.driver.find_element(By.ID, "zone").click()
    assert browser.script(shown) == utc
    assert "1 minute ago" in browser.text("#row-web01")
    browser.go("/")
    held = browser.driver.find_element(By.CSS_SELECTOR, "#rollouts a[href^='/rollouts/']")
    held.send_keys(Keys.ENTER)
    browser.until("return location.pathname.startsWith('/rollouts/')")
    assert "db01" in browser.text("#told")


def test_a_slash_goes_to_the_search_field_and_escape_leaves_it(browser: Browser) -> None:
    browser.go("/nodes")
    focused = "return document.activeElement.name"
    browser.driver.find_element(By.TAG_NAME, "body").send_keys("/")
    assert browser.script(focused) == "text"
    browser.driver.switch_to.active_element.send_keys("web/tags", Keys.HOME)
    assert browser.script("return document.activeElement.value") == "web/tags"
    browser.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert browser.script("return document.activeElement === document.body")
    browser.driver.find_element(By.ID, "q").send_keys("/")
    assert browser.script(focused) == "q"


def test_the_search_field_suggests_while_the_user_types(browser: Browser, site: Site) -> None:
    browser.go("/")
    field = browser.driver.find_element(By.CSS_SELECTOR, ".find input")
    values = "[...document.querySelectorAll('#suggestions option')].map((one) => one.value)"
    field.send_keys("web0")
    browser.until(f"return {values}.join() === 'web01'")
    browser.asked()
    field.send_keys(Keys.BACKSPACE)
    browser.until(f"return {values}.includes('role:web')")
    assert len([url for url in browser.asked() if "/find.json" in url]) == 1
    field.clear()
    field.send_keys("role:web", Keys.ENTER)
    browser.until("return location.pathname === '/nodes'")
    assert "web01" in browser.text("main")
    browser.go("/find?text=web")
    browser.driver.find_element(By.LINK_TEXT, "web01").click()
    browser.until("return location.pathname === '/nodes/web01'")
    evil = status("evil", site.now(), last_run={"release": f"web/tags/{EVIL[:-2]}"})
    browser.served.do(site.tell, evil)
    browser.go("/find?text=tags")
    browser.driver.find_element(By.CSS_SELECTOR, ".find input").send_keys("tags")
    browser.until(f"return {values}.some((one) => one.includes('<img'))")
    assert browser.script("return window.pwned") is None
    assert browser.problems() == []


def test_a_picture_fits_and_is_shown_in_full_size_on_demand(browser: Browser, site: Site) -> None:
    asks = (CatalogQuery(text='servers_with_role("web")', digest="x"),)
    listed = [
        entry("web01", at=site.now(), roles=("web",)),
        entry("lb01", at=site.now(), roles=("lb",), queries=asks),
    ]
    browser.served.do(site.list_, *listed)
    browser.wide(360)
    browser.go("/kicks")
    width = "return document.querySelector('.picture svg').getBoundingClientRect().width"
    assert browser.script(width) < 360
    browser.driver.find_element(By.CSS_SELECTOR, ".tools input").click()
    assert browser.script(width) > 400
    browser.driver.find_element(By.CSS_SELECTOR, ".picture a[href='/nodes/web01']").click()
    browser.until("return location.pathname === '/nodes/web01'")
    assert browser.problems() == []


def test_the_navigation_is_a_line_of_seven_with_tabs_below(browser: Browser) -> None:
    browser.wide(390)
    browser.go("/audit")
    links = browser.driver.find_elements(By.CSS_SELECTOR, "header nav a")
    assert len(links) == 7
    assert len({link.location["y"] for link in links}) == 1
    assert browser.script("return document.querySelector('header').offsetHeight < 100")
    # The present view is in sight, and its other lists are tabs.
    current = browser.driver.find_element(By.CSS_SELECTOR, "header [aria-current]")
    assert current.text == "Activity"
    assert current.location["x"] + current.size["width"] <= 390
    browser.driver.find_element(By.LINK_TEXT, "Drift").click()
    browser.until("return location.pathname === '/drift'")
    assert browser.text(".tabs [aria-current='page']") == "Drift"


class Neighbour(ThreadingHTTPServer):
    """Another user's server on another port of this machine: it keeps the cookies."""

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


def test_the_server_of_another_user_on_this_machine_gets_no_cookie(browser: Browser) -> None:
    driver = browser.driver
    with Neighbour() as neighbour:
        for host in ("127.0.0.1", "localhost", "other.localhost"):
            driver.get(f"http://{host}:{neighbour.server_port}/")
        assert set(neighbour.cookies) == {""}
        browser.go("/nodes")
        assert "web01" in browser.text("main")
        # It would get the cookie at an address that is equal for all ports, if a user opens that.
        plain = f"http://127.0.0.1:{browser.served.site.port}/"
        entrance = browser.served.way.entrance
        assert entrance is not None
        driver.get(f"{plain}enter?key={entrance.sessions.link()}")
        browser.until("return location.pathname === '/'")
        driver.get(f"http://127.0.0.1:{neighbour.server_port}/")
        assert any(entrance.cookie in one for one in neighbour.cookies)
        driver.delete_all_cookies()


def test_a_bookmark_survives_a_restart_and_a_session_does_not(
    driver: webdriver.Chrome, site: Site, tmp_path: Path
) -> None:
    site.name = kept_host_name(tmp_path / "host-name")
    with Served(site) as served:
        browser = Browser(driver, served)
        browser.go("/nodes?name=web01")
        bookmark = driver.current_url
    site.name = kept_host_name(tmp_path / "host-name")
    with Served(site, port=site.port) as served:
        driver.get(bookmark)
        assert "You have no session here" in browser.text("h1")
        Browser(driver, served)
        driver.get(bookmark)
        assert driver.current_url == bookmark
        assert "web01" in browser.text("main")
        driver.get("about:blank")


def test_other_sites_get_nothing(browser: Browser) -> None:
    driver = browser.driver
    browser.go("/nodes")
    driver.get("about:blank")
    told = """const done = arguments[1];
        fetch(arguments[0], { credentials: 'include' })
            .then((answer) => done(String(answer.status)), () => done('refused'));"""
    assert driver.execute_async_script(told, browser.served.url) == "refused"


@pytest.fixture
def actor(site: Site) -> PlayedActor:
    actor = site.actor = PlayedActor()
    names = [f"app{number:02}" for number in range(30)]
    site.tell(*(status(name, site.now()) for name in names), status("app30", site.now() - 9000))
    site.leave("app30")
    return actor


@pytest.fixture
def acting(
    driver: webdriver.Chrome, site: Site, actor: PlayedActor
) -> Iterator[tuple[Browser, PlayedActor]]:
    with Served(site) as served:
        yield Browser(driver, served), actor
        driver.get("about:blank")


@pytest.mark.parametrize("scripts", [True, False], ids=["with JavaScript", "without"])
def test_rows_are_chosen_held_and_freed(acting: tuple[Browser, PlayedActor], scripts: bool) -> None:
    browser, actor = acting
    driver = browser.driver
    driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not scripts})

    def click(selector: str) -> None:
        driver.find_element(By.CSS_SELECTOR, selector).click()

    def button(text: str) -> None:
        driver.find_element(By.XPATH, f"//main//button[normalize-space()='{text}']").click()

    def shown(text: str) -> None:
        WebDriverWait(driver, PATIENCE, 0.05).until(lambda _: text in driver.page_source)

    try:
        browser.go("/nodes?name=app")
        for name in ("app01", "app02", "app30"):
            click(f"input[value='{name}']")
        button("Put on hold")
        shown("These 3 nodes, and no others")
        shown("Unresponsive, may not receive the request: app30.")
        driver.find_element(By.ID, "message").send_keys("disk is full")
        actor.refusing, actor.dead = {"app02": "denied by policy line 1"}, {"app30"}
        button("Put on hold")
        shown("1 refused, 1 no answer, 1 accepted")
        rows = [row.text for row in driver.find_elements(By.CSS_SELECTOR, "tbody tr")]
        assert [row.split()[:2] for row in rows] == [
            ["app02", "refused"],
            ["app30", "no"],
            ["app01", "accepted"],
        ]
        button("End these holds")
        shown("End own hold: app01?")
        button("End own hold")
        shown("1 accepted</p>")
        assert [(str(deed), deed.nodes) for deed in actor.deeds] == [
            ("hold (for 2h: disk is full)", ("app30", "app01", "app02")),
            ("enable", ("app01",)),
        ]
        browser.go("/nodes?name=app")
        click("input[name=all]")
        button("Noop run")
        shown("These 31 nodes, and no others")
    finally:
        driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_two_tabs_confirm_twice_and_a_reload_never(acting: tuple[Browser, PlayedActor]) -> None:
    browser, actor = acting
    driver = browser.driver
    path = "/nodes/do/noop?node=app01&node=app02"
    browser.go(path)
    first = driver.current_window_handle
    driver.switch_to.new_window("tab")
    browser.go(path)
    driver.find_element(By.CSS_SELECTOR, "button.do").click()
    browser.until("return document.body.innerText.includes('2 accepted')")
    driver.refresh()
    browser.until("return document.body.innerText.includes('confirmation was used before')")
    assert len(actor.deeds) == 1
    driver.close()
    driver.switch_to.window(first)
    # Names that a hand or an extension adds to the form are not confirmed.
    browser.script("document.querySelector('input[name=node]').value = 'db01'")
    driver.find_element(By.CSS_SELECTOR, "button.do").click()
    browser.until("return document.body.innerText.includes('confirmation was used before')")
    assert len(actor.deeds) == 1
    driver.find_element(By.CSS_SELECTOR, "button.do").click()
    browser.until("return document.body.innerText.includes('2 accepted')")
    assert [deed.nodes for deed in actor.deeds] == [("app01", "app02"), ("db01", "app02")]


def test_axe_finds_nothing_in_a_selection(acting: tuple[Browser, PlayedActor]) -> None:
    browser, actor = acting
    actor.refusing = {"app02": "denied by policy line 1"}
    for path in ("/nodes", "/nodes/do/hold?node=app01&node=app02&node=lb01", "do"):
        if path == "do":
            browser.driver.find_element(By.ID, "message").send_keys("disk")
            browser.driver.find_element(By.CSS_SELECTOR, "button.do").click()
        else:
            browser.go(path)
        for width in (390, 1440):
            browser.wide(width)
            assert browser.script("return document.documentElement.scrollWidth <= innerWidth")
        axe_finds_nothing(browser.driver, path)


def test_buttons_and_rows_stay_while_nodes_run(
    acting: tuple[Browser, PlayedActor], site: Site
) -> None:
    browser, turns = acting[0], [NodeRun(1, NodeName(f"app{number:02}")) for number in range(30)]
    rollout = a_rollout(
        groups=(tuple(turn.node for turn in turns),), options=RolloutOptions(delivery=RELEASE)
    )
    with closing(Journals(site.directory / "rollouts").begin(rollout, at=AT)) as journal:

        def happens(*events: Event) -> None:
            for event in events:
                journal.append(event, at=AT)
            browser.served.do(site.fleet.stir)

        happens(StagingEnded(serials={}), runs_started(*turns))
        browser.wide(390)
        browser.go(f"/rollouts/{rollout.id}")
        places = """return [...document.querySelectorAll('.bar :is(a, button)')].map((one) =>
            one.textContent + JSON.stringify(one.getBoundingClientRect()))"""
        order = "return [...document.querySelectorAll('tr[id]')].map((one) => one.id)"
        browser.script("scrollTo(0, document.body.scrollHeight)")
        before, rows = browser.script(places), browser.script(order)
        assert (
            browser.script("return document.querySelector('.bar').getBoundingClientRect().y") == 0
        )
        failed = run_ended(turns[9], NodeResult.FAILED, outcome="failed", run="r", reason="no disk")
        happens(failed, run_ended(turns[3]))
        browser.until("return document.querySelector('.problem')?.textContent.includes('no disk')")
        assert browser.text("h1") == "r7 → 30 nodes: running, app09 failed"
        assert (browser.script(places), browser.script(order)) == (before, rows)
        report = site.directory / "report.html"
        report.write_text(page(journal.report(), site.clock.now()))
    browser.driver.get(report.as_uri())
    for width in (390, 320):
        browser.wide(width)
        assert browser.script("return document.documentElement.scrollWidth <= innerWidth")
