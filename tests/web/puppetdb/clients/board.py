"""Puppetboard in a separate process, and a Chromium for it."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

from tests.rigs.node import PATIENCE
from tests.rigs.waiting import wait_until

SETTINGS = """
PUPPETDB_HOST, PUPPETDB_PORT = "127.0.0.1", {port}
PUPPETDB_TIMEOUT = 60
DEFAULT_ENVIRONMENT = "*"
SECRET_KEY = "a test"
ENABLE_CATALOG = True
ENABLE_CLASS = True
OFFLINE_MODE = True
UNRESPONSIVE_HOURS = 24 * 365 * 100
"""
RUNNING = " * Running on "


@contextmanager
def puppetboard(python: Path, directory: Path, api: str) -> Iterator[str]:
    """Run Puppetboard until the end of the block; yield its address."""
    settings, log = directory / "puppetboard.py", directory / "puppetboard.log"
    settings.write_text(SETTINGS.format(port=urlsplit(api).port))
    with log.open("w") as output:
        process = subprocess.Popen(
            [str(python), "-m", "flask", "--app", "puppetboard.app", "run", "--port", "0"],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={"PUPPETBOARD_SETTINGS": str(settings), "PYTHONUNBUFFERED": "1"},
        )
    try:
        yield _address(process, log)
    finally:
        process.kill()
        process.wait(PATIENCE)


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    wait_until(lambda: RUNNING in log.read_text() or process.poll() is not None, log.read_text)
    return log.read_text().partition(RUNNING)[2].split()[0]


class BoardVisitor:
    """A browser for pages of Puppetboard."""

    def __init__(self, driver: webdriver.Chrome, address: str) -> None:
        self._driver = driver
        self._address = address

    def shows(self, path: str, *texts: str) -> str:
        """Open a page, wait until it shows texts, and return all that it shows.

        Every request of the page must succeed.
        """
        self._driver.get_log("performance")  # type: ignore[no-untyped-call]
        self._driver.get(self._address + path)
        wait = WebDriverWait(self._driver, PATIENCE, poll_frequency=0.1)
        missing = list(texts)

        def complete(driver: webdriver.Chrome) -> bool:
            shown = driver.execute_script("return document.body.innerText")
            missing[:] = [text for text in texts if text not in shown]
            return not missing and driver.execute_script(
                "return document.readyState === 'complete' && !(window.jQuery && jQuery.active)"
            )

        wait.until(complete, f"{path} lacks {missing}")
        assert self._refused() == [], path
        text: str = self._driver.execute_script("return document.body.innerText")
        return text

    def _refused(self) -> list[str]:
        """Return the requests since the page was opened that failed."""
        messages = [
            json.loads(line["message"])["message"]
            for line in self._driver.get_log("performance")  # type: ignore[no-untyped-call]
        ]
        answers = [
            one["params"]["response"]
            for one in messages
            if one["method"] == "Network.responseReceived"
        ]
        return [
            f"{one['status']} {one['url']}"
            for one in answers
            if one["status"] >= 400 and not one["url"].endswith("/favicon.ico")
        ]
