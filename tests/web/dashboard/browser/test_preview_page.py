"""The page of `localpuppet preview --html` in a browser: from a file, without a server."""

import time
from pathlib import Path
from typing import Any

from axe_selenium_python import Axe
from selenium import webdriver

from localpuppet.node.cli.preview.pages import preview_html
from localpuppet.node.preview.result import PreviewResult
from tests.node.cli.preview.results import hostile, usual
from tests.web.dashboard.browser.chromium import PATIENCE

WIDTHS = (380, 800, 1400)


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
    assert shown(driver, "DB05 cron") == "2 of 10 shown"
    assert [group.is_displayed() for group in groups] == [False, True]
    assert problems(driver) == []


def test_hostile_text_runs_nothing_and_fits_every_width(
    driver: webdriver.Chrome, tmp_path: Path
) -> None:
    for result in (usual(), hostile()):
        opened(driver, tmp_path, result)
        for width in WIDTHS:
            driver.execute_cdp_cmd(
                "Emulation.setDeviceMetricsOverride",
                {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
            )
            wide = driver.execute_script("return document.documentElement.scrollWidth")
            assert wide <= width
        assert problems(driver) == []
        assert driver.find_elements("css selector", "img, a, iframe") == []
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_screen_reader_and_weak_eyes_can_read_it(
    driver: webdriver.Chrome, tmp_path: Path
) -> None:
    opened(driver, tmp_path, usual())
    for scheme in ("light", "dark"):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        axe = Axe(driver)
        axe.inject()
        problems = axe.run()["violations"]
        assert [(item["id"], item["nodes"][0]["html"]) for item in problems] == []
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
