"""Six real nodes with real Puppet, two releases, failures on them, and an operator with a mouse."""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException, TimeoutException
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from localpuppet.base.formats.names import SignerName
from localpuppet.fleet.bus.layout import PRESENCE
from localpuppet.fleet.trust.key_files import OwnKey, TrustedKeys
from localpuppet.fleet.trust.signing import MessageKind, MessageSigner, claimed_payload
from tests.rigs.fleet import Fleet
from tests.rigs.forge import Forge
from tests.rigs.member import Member, read_line
from tests.rigs.node import Node
from tests.rigs.waiting import PATIENCE, wait_until

CLICKABLE = "a, button, summary, label"
# One look for all elements: a driver's question for the text of each takes 20 ms of processors.
TEXTS = """return [...document.querySelectorAll(arguments[0])]
  .map(element => element.innerText.replaceAll("\\t", " "))"""
SHOWN = """return [...document.querySelectorAll(arguments[0])].find(element =>
  element.checkVisibility() && (element.innerText ?? "").includes(arguments[1])) ?? null"""


class Operator:
    """One task."""

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self._driver = driver
        self._url = url
        self.begins()

    def begins(self) -> None:
        """Begin a task at the overview."""
        self.clicks = 0  # how often the operator clicked
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
            shown[:] = self._driver.execute_script(TEXTS, selector)
            return next((text for text in shown if all(word in text for word in words)), "")

        return self._until(has, lambda: f"{selector} shows {shown}, not all of {words}")

    def _once_shown(self, selector: str, text: str, act: Callable[[WebElement], None]) -> None:
        def acted(_: webdriver.Chrome) -> str:
            element = self._driver.execute_script(SHOWN, selector, text)
            if element is None or not element.is_displayed():
                return ""
            act(element)
            return "done"

        self._until(acted, lambda: f"no {selector} with {text!r} in {self.page()}")

    def page(self) -> str:
        """Return the text of the whole view."""
        return self._driver.find_element(By.TAG_NAME, "body").text

    def _until(self, look: Callable[[webdriver.Chrome], str], what: Callable[[], str]) -> str:
        """Return the first answer that is not empty; a live update may replace an element."""
        wait = WebDriverWait(
            self._driver,
            PATIENCE,
            poll_frequency=0.2,
            ignored_exceptions=[StaleElementReferenceException],
        )
        try:
            return wait.until(look)
        except TimeoutException as error:
            raise AssertionError(f"{self._driver.current_url}: {what()}") from error


LOCK = "version: 1\nmodules: {}\nsources: {}\n"

POLICY = "policy default deny\nallow\tchoria=alice\t{}\t*\t*\n".format(
    "status disable enable runonce trigger report log capture deploy:site/tags/*"
)

ROLES = {"web01": "web", "web02": "web", "db01": "db", "lb01": "lb", "mon01": "mon", "bak01": "bak"}
RELATION = "relation orders does not exist"

CLASS = """# The configuration of a {role} server.
class site::{role}(String $directory) {{
  file {{ "${{directory}}/{role}.conf": content => "release = {tag}\\n" }}{more}
}}
"""

BROKEN = {
    "db": f"""
  -> exec {{ 'migrate the database':
    command   => '/bin/echo ERROR: {RELATION}; /bin/false',
    provider  => shell,
    logoutput => true,
  }}""",
    "lb": "\n  include site::tls",
}


def code(tag: str, *broken: str) -> dict[str, str]:
    """Return the files of a release, in which some roles are broken."""
    files = {"manifest.yaml": "{}\n", "manifest.lock": LOCK}
    for role in sorted(set(ROLES.values())):
        more = BROKEN[role] if role in broken else ""
        files[f"site/manifests/{role}.pp"] = CLASS.format(role=role, tag=tag, more=more)
    return files


class Alice:
    """The operator: a root with a key, which all nodes trust, and with the releases."""

    def __init__(self, fleet: Fleet, sources: Mapping[str, Any]) -> None:
        self.node = Node(fleet.directory / "alice")
        self.node.root.mkdir()
        own = {"identity": {"name": "alice"}, "web": {"captures": "captures"}}
        self.node.settings(**own, **fleet.bus.settings, **sources)
        keys = {SignerName(member.name): member.key.load().public_key() for member in fleet.members}
        key = OwnKey(self.node.root / "var" / "keys" / "node.pem").make(replace=False).public_key()
        keys[SignerName("alice")] = key
        for root in (self.node.root, *(member.root for member in fleet.members)):
            for name, key in keys.items():
                TrustedKeys(root / "trusted").pin(name, key)
        for tag in ("r1", "r2"):
            self.does("stage", "--no-parse", f"site/tags/{tag}")

    def does(self, *arguments: str, code: int = 0) -> str:
        """Run a command of which the exit code is known; return what it printed."""
        done = self.node.run(*arguments)
        assert done.code == code, f"{arguments}: {done}"
        return done.out


class SmallSite:
    """The nodes, their operator and the dashboard."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.control = control = Forge(fleet.directory).repo("control")
        control.commit(code("r1"), "r1")
        control.commit(code("r2", "db", "lb"), "r2")
        sources: dict[str, Any] = {
            "sources": {"site": {"git": control.url}},
            "allow_file_urls": True,
        }
        for name, role in ROLES.items():
            member = fleet.add_one(name, puppet=True, **sources)
            given = {
                "app": "site/assigned",
                "parameters": {"role": role},
                "classes": {f"site::{role}": {"directory": str(member.root)}},
            }
            member.node.write("input.yaml", json.dumps(given))
            member.node.write("policies/puppet.policy", POLICY)
        self.alice = Alice(fleet, sources)

    def member(self, name: str) -> Member:
        """Return a node by the first part of its name."""
        return next(one for one in self.fleet.members if one.name.startswith(f"{name}."))

    def happens(self) -> None:
        """Have all that the table lists happen."""
        names = [str(member.name) for member in self.fleet.members]
        self.fleet.start()
        self.alice.does("assign", *names, "site/tags/r1")
        for member in self.fleet.members:
            member.wait_log("published the last run")
        wait_until(self._all_have_run, lambda: self.alice.does("nodes"))
        self.alice.does("disable", str(self.member("mon01").name), "-m", "the disk is replaced")
        for words in (("disable", "-m", "checked by hand"), ("enable",)):
            self.member("db01").node.run(*words, code=0)
        self._lose(self.member("mon01"))
        self._age(self.member("bak01"))
        online = ",".join(names[:4])
        options = ("--order", "none", "--max-failures", "2", "--release", "site/tags/r2")
        self.alice.does("rollout", "run", online, *options, code=1)
        drifts = self.member("web02")
        (drifts.root / "web.conf").write_text("changed by hand\n")
        self.alice.does("trigger", str(drifts.name), "--wait")

    def _all_have_run(self) -> bool:
        """Return whether the bus has the last run of each node."""
        listed = json.loads(self.alice.does("nodes", "--json"))["nodes"]
        return len(listed) == len(ROLES) and all(node["last_run"] for node in listed)

    def returns(self, *names: str) -> None:
        """Start agents that were killed, and end the holds on their nodes."""
        members = [self.member(name) for name in names]
        for member in members:
            member.start()
        self.fleet.present(*members)
        for member in members:
            member.wait_log("on sqlite, no periodic run", 2)
        self.alice.does("enable", *(str(member.name) for member in members))

    def _age(self, member: Member) -> None:
        """Kill an agent, and have its last state be one of two hours after its run."""
        member.kill()

        async def publish() -> None:
            key = f"{PRESENCE}{member.name}"
            async with self.fleet.bus.open() as kv:
                entry = await kv.get(key)
                assert entry is not None
                told = json.loads(claimed_payload(entry.value))
                for name in ("started_at", "finished_at"):
                    told["last_run"][name] -= 2 * 3600
                signer = MessageSigner(SignerName(member.name), member.key.load())
                payload = json.dumps({**told, "run_interval": 1800.0}).encode()
                await kv.put(key, signer.sign(payload, MessageKind.PRESENCE))

        asyncio.run(publish())

    def _lose(self, member: Member) -> None:
        """Kill an agent, and have the bus forget it, as it does a minute later."""
        member.kill()

        async def expire() -> None:
            key = f"{PRESENCE}{member.name}"
            async with self.fleet.bus.open() as kv:
                entry = await kv.get(key)
                assert entry is not None
                assert await kv.remove_if_revision(key, entry.revision)

        asyncio.run(expire())

    def dashboard(self) -> str:
        """Start the dashboard of Alice; return the link that gives a session."""
        process = self.alice.node.start("web", "--actions", "--listen", "127.0.0.1:0")
        read_line(process)
        return read_line(process).strip()

    def end(self) -> None:
        """End the commands of Alice, the dashboard too."""
        self.alice.node.end()
