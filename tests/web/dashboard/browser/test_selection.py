"""Actions for many nodes in Chromium: what was selected, confirmed, and what nodes decided."""

from collections.abc import Iterator

import pytest
from axe_selenium_python import Axe
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from tests.web.dashboard.browser.chromium import PATIENCE, Browser
from tests.web.dashboard.site import PlayedActor, Served, Site, status


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
def test_rows_are_selected_held_and_released(
    acting: tuple[Browser, PlayedActor], scripts: bool
) -> None:
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
        shown("End my hold: app01?")
        button("End my hold")
        shown("1 accepted</p>")
        assert [(str(deed), deed.nodes) for deed in actor.deeds] == [
            ("hold (for 2h: disk is full)", ("app01", "app02", "app30")),
            ("enable", ("app01",)),
        ]
        browser.go("/nodes?name=app")
        click("input[name=all]")
        button("Noop run")
        shown("These 31 nodes, and no others")
    finally:
        driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_two_tabs_confirm_twice_and_a_reload_repeats_nothing(
    acting: tuple[Browser, PlayedActor],
) -> None:
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


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_in_a_selection(acting: tuple[Browser, PlayedActor], scheme: str) -> None:
    browser, actor = acting
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    axe = Axe(browser.driver)
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
        axe.inject()
        found = axe.run()
        assert found["violations"] == [], f"{path}: {axe.report(found['violations'])}"
