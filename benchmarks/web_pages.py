"""Users of the dashboard for `web.py`: a visitor, many open pages, and a real Chromium.

Owns: the requests of each, as of `live.js` and a browser. Refuses to know: what is measured.
"""

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from http.client import HTTPConnection
from http.cookies import SimpleCookie
from itertools import cycle, islice
from subprocess import Popen
from types import MappingProxyType

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from tests.rigs.member import read_line
from tests.web.dashboard.browser.chromium import ARGUMENTS, PROGRAM

PATIENCE = 1800
# Seconds between two requests of a page: `QUIET` of live.js.
QUIET = 2.0
# Milliseconds since 1970, by the browser's clock, when a row shows a word.
_CHANGED = """
const [row, word, done] = arguments;
const look = () => document.getElementById(row)?.innerText.includes(word);
const watch = new MutationObserver(() => look() && (watch.disconnect(), done(Date.now())));
watch.observe(document.body, { childList: true, subtree: true, characterData: true });
"""
_PAINTED = """
const done = arguments[0];
const first = () => performance.getEntriesByName("first-contentful-paint")[0]?.startTime;
const wait = () => first() === undefined ? setTimeout(wait, 5) : done(first());
wait();
"""


class Visitor:
    """A person who has opened the link of the dashboard.

    Args:
        process: `localpuppet web`.
    """

    def __init__(self, process: "Popen[str]") -> None:
        self.process = process
        read_line(process)
        found = re.fullmatch(r"http://(.*?):(\d+)(/enter\?key=.*)\n", read_line(process))
        assert found
        self.host, self.port = found[1], int(found[2])
        # As browsers do: names below `localhost` are not resolved.
        self._connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        self.cookie = ""
        self.text(found[3])

    def text(self, path: str) -> str:
        """Return a page."""
        headers = {"Host": f"{self.host}:{self.port}", "Cookie": self.cookie}
        self._connection.request("GET", path, headers=headers)
        answer = self._connection.getresponse()
        text = answer.read().decode()
        assert answer.status == 200, text
        for name, morsel in SimpleCookie(answer.headers.get("set-cookie", "")).items():
            self.cookie = f"{name}={morsel.value}"
        return text

    def seconds(self, path: str) -> float:
        """Return the seconds of an answer."""
        begun = time.perf_counter()
        self.text(path)
        return time.perf_counter() - begun

    def until(self, path: str, has: Callable[[str], bool]) -> float:
        """Return the seconds until a page has a text."""
        begun = time.perf_counter()
        while not has(self.text(path)):
            assert time.perf_counter() - begun < PATIENCE, path
            time.sleep(0.5)
        return time.perf_counter() - begun


class OpenPages:
    """Open pages that behave as `live.js`: after an event, each requests itself again.

    Args:
        visitor: The owner of the session.
    """

    def __init__(self, visitor: Visitor) -> None:
        self._visitor = visitor
        self.looks = 0

    @asynccontextmanager
    async def open(self, count: int, paths: Iterable[str]) -> AsyncGenerator[None, None]:
        """Open a number of pages with some views, one after the other."""
        asked = {path: await self._asked_again(path) for path in paths}
        async with asyncio.TaskGroup() as group:
            some = islice(cycle(asked.items()), count)
            pages = [group.create_task(self._page(path, again)) for path, again in some]
            yield
            for page in pages:
                page.cancel()

    async def _asked_again(self, path: str) -> str:
        """Return the requests of an open page after a change: itself only if a part is live."""
        async with self._asked(path) as (reader, length):
            main = (await reader.readexactly(length)).partition(b"<main")[2]
        return path if b"data-live" in main else "/bus"

    async def _page(self, path: str, again: str) -> None:
        changed, seen = asyncio.Event(), dict[str, str]()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._listen(changed, seen, path, live=path == again))
            group.create_task(self._look(changed, seen, again))

    async def _listen(
        self, changed: asyncio.Event, seen: dict[str, str], path: str, *, live: bool
    ) -> None:
        subject = re.match(r"/nodes/([^/?]+)", path)
        async with self._asked("/events") as (reader, _):
            changed.set()  # as after `onopen`
            number = ""
            while line := await reader.readline():
                if line.startswith(b"id:"):
                    number = line[3:].decode().strip()
                if line.startswith(b"data:"):
                    nodes = json.loads(line[5:])["nodes"]
                    seen["Last-Event-ID"] = number
                    if nodes is None or (live and (subject is None or subject[1] in nodes)):
                        changed.set()

    async def _look(self, changed: asyncio.Event, seen: dict[str, str], path: str) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await changed.wait()
            changed.clear()
            looked = loop.time()
            async with self._asked(path, seen) as (reader, length):
                await reader.readexactly(length)
            self.looks += 1
            await asyncio.sleep(looked + QUIET - loop.time())

    @asynccontextmanager
    async def _asked(
        self, path: str, headers: Mapping[str, str] = MappingProxyType({})
    ) -> AsyncGenerator[tuple[asyncio.StreamReader, int], None]:
        """Send a request, and yield the body of the answer and its length."""
        visitor = self._visitor
        reader, writer = await asyncio.open_connection("127.0.0.1", visitor.port)
        try:
            host = f"{visitor.host}:{visitor.port}"
            writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n".encode())
            more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            writer.write(f"Cookie: {visitor.cookie}\r\n{more}\r\n".encode())
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            assert " 200 " in head.partition("\r\n")[0], head
            length = re.search(r"content-length: (\d+)", head)
            yield reader, int(length[1]) if length else 0
        finally:
            writer.close()


class Browser:
    """A Chromium with the session of a visitor.

    Args:
        driver: The browser.
        visitor: The owner of the session.
    """

    def __init__(self, driver: webdriver.Chrome, visitor: Visitor) -> None:
        self._driver = driver
        self._url = f"http://{visitor.host}:{visitor.port}"
        driver.get(f"{self._url}/static/icon.svg")
        name, _, value = visitor.cookie.partition("=")
        driver.add_cookie({"name": name, "value": value})
        driver.execute_cdp_cmd("Network.setCacheDisabled", {"cacheDisabled": True})

    def paint(self, path: str) -> float:
        """Return the seconds until the first paint of a view with an empty cache."""
        self._driver.get("about:blank")
        self._driver.get(self._url + path)
        return float(self._driver.execute_async_script(_PAINTED)) / 1000

    def go(self, path: str) -> None:
        """Open a view."""
        self._driver.get(self._url + path)

    def changed(self, row: str, word: str) -> float:
        """Return when a row shows a new word, in seconds since 1970."""
        return float(self._driver.execute_async_script(_CHANGED, row, word)) / 1000


@contextmanager
def chromium(visitor: Visitor) -> Iterator[Browser]:
    """Yield a browser."""
    options = webdriver.ChromeOptions()
    for argument in ARGUMENTS:
        options.add_argument(argument)
    options.binary_location = PROGRAM
    driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    try:
        driver.set_script_timeout(60)
        yield Browser(driver, visitor)
    finally:
        driver.quit()
