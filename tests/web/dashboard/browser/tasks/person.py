"""An operator with a mouse, who begins at the overview and counts clicks."""

from collections.abc import Callable

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException, TimeoutException
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from tests.web.dashboard.browser.chromium import PATIENCE

CLICKABLE = "a, button, summary, label"


class Operator:
    """One task.

    Args:
        driver: A browser with a session of the dashboard.
        url: The dashboard's address without a path.

    Attributes:
        clicks: How often the operator clicked.
    """

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self._driver = driver
        self._url = url
        self.begins()

    def begins(self) -> None:
        """Begin a task at the overview."""
        self.clicks = 0
        self._driver.get(f"{self._url}/")

    def click(self, selector: str, text: str = "") -> None:
        """Click the first element that matches a CSS selector and has a text, once it is shown."""
        self._once_shown(selector, text, lambda element: element.click())
        self.clicks += 1

    def follow(self, text: str) -> None:
        """Click the first link or button with a text, once it is shown."""
        self.click(CLICKABLE, text)

    def types(self, selector: str, text: str) -> None:
        """Type into a field, which takes one click."""

        def typed(element: WebElement) -> None:
            element.clear()
            element.send_keys(text)

        self._once_shown(selector, "", typed)
        self.clicks += 1

    def reads(self, selector: str, *words: str) -> str:
        """Wait until an element that matches a CSS selector shows all words; return its text."""
        shown = list[str]()

        def has(_: webdriver.Chrome) -> str:
            elements = self._driver.find_elements(By.CSS_SELECTOR, selector)
            shown[:] = [element.text for element in elements]
            return next((text for text in shown if all(word in text for word in words)), "")

        return self._until(has, lambda: f"{selector} shows {shown}, not all of {words}")

    def _once_shown(self, selector: str, text: str, act: Callable[[WebElement], None]) -> None:
        def acted(_: webdriver.Chrome) -> str:
            for element in self._driver.find_elements(By.CSS_SELECTOR, selector):
                if element.is_displayed() and text in element.text:
                    act(element)
                    return "done"
            return ""

        self._until(acted, lambda: f"no {selector} with {text!r} in {self.page()}")

    def page(self) -> str:
        """Return the text of the whole view."""
        return self._driver.find_element(By.TAG_NAME, "body").text

    def _until(self, look: Callable[[webdriver.Chrome], str], what: Callable[[], str]) -> str:
        """Return the first answer that is not empty; a live update may replace an element."""
        wait = WebDriverWait(
            self._driver,
            PATIENCE,
            poll_frequency=0.05,
            ignored_exceptions=[StaleElementReferenceException],
        )
        try:
            return wait.until(look)
        except TimeoutException as error:
            raise AssertionError(f"{self._driver.current_url}: {what()}") from error
