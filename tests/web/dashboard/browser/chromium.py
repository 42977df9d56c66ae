"""A real Chromium with the dashboard."""

import json
from typing import Any

from axe_selenium_python import Axe
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from tests.rigs.waiting import PATIENCE
from tests.web.make import Served, Site

EVIL = "<img src=x onerror=pwned=1><script>pwned=1</script><svg onload=pwned=1>\u202e\u2066"
# Without windows, Chromium takes two thirds of the processor time, and draws the same. The script
# of this name in /usr/bin would be ended without the browser.
PROGRAM = "/usr/lib/chromium/chromium-headless-shell"
ARGUMENTS = (
    # Tests run as root, which Chromium's sandbox refuses; and it loads only the dashboard.
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
        """Return the URLs of requests since the last call."""
        found = set()
        for line in self.driver.get_log("performance"):  # type: ignore[no-untyped-call]
            message = json.loads(line["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                found.add(message["params"]["request"]["url"])
        return found

    def problems(self) -> list[str]:
        """Return the complaints of scripts and policies since the last call."""
        return [line["message"] for line in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]


def axe_finds_nothing(driver: webdriver.Chrome, path: str) -> None:
    """Assert that everybody can read the present page: all of it dark, its contrasts light, too."""
    axe = Axe(driver)
    axe.inject()
    contrast = {"runOnly": {"type": "rule", "values": ["color-contrast"]}}
    for scheme, rules in (("dark", {}), ("light", contrast)):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        # Of what passes, axe returns one place of each rule: all places take most of its time.
        found = axe.run(options={**rules, "resultTypes": ["violations"]})
        assert found["violations"] == [], f"{path}, {scheme}: {axe.report(found['violations'])}"
        assert "color-contrast" in [one["id"] for one in found["passes"]]


def theirs(site: Site) -> str:
    """Return the id of a rollout that only a node reports."""
    return site.clock.now().strftime("%Y%m%dT%H%M%SZ-0b0b")
