"""Takes the pictures of the dashboard in Chromium: a fleet of thirty nodes, most of them well.

The dashboard is that of its tests (`tests/web/make.py`), with their clock, so that each call takes
the same pictures. The story of the fleet: `r42` of the shop was rolled out an hour ago. `app04` has
failed since then, `db03` was on hold for alice, and the timer of `cache02` has stopped.
"""

import sys
import tempfile
from base64 import b64decode
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from localpuppet.base.formats.converter import to_record
from localpuppet.base.formats.names import NodeName, ReleasePath, RolloutId
from localpuppet.base.formats.times import show_time
from localpuppet.fleet.history.history_records import RunSummary
from localpuppet.node.puppet.fault import FailureCause
from localpuppet.node.puppet.resources import ResourceResult
from localpuppet.node.runs.run import Category, Outcome
from localpuppet.rollout.events import (
    LastRunsReported,
    NodeResult,
    NodeRun,
    NodeRunEnded,
    NodeRunsStarted,
    RolloutBegan,
    RolloutEnded,
    RolloutEnding,
)
from localpuppet.rollout.journal import Journals
from localpuppet.rollout.rollout_options import Amount, Delivery, RolloutOptions
from localpuppet.web.dashboard.run_table import RunRow
from tests.fleet.inventory.entries import entry
from tests.fleet.make import a_part, a_summary
from tests.web.dashboard.browser.chromium import ARGUMENTS, PROGRAM, Browser
from tests.web.make import Served, Site, run_id, status, summarise

# File, path, width and height in CSS pixels, dark.
PICTURES = (
    ("web-overview.png", "/", 1440, 1370, False),
    ("web-failures.png", "/failures", 1200, 470, False),
    ("web-nodes.png", "/nodes?sort=severity", 390, 780, True),
    ("web-node.png", "/nodes/app04.example.com", 1200, 1000, False),
    ("web-rollout.png", "/rollouts/20261120T130000Z-3f1c", 1200, 1000, False),
)
WIDTHS = (1440, 1024, 390)
ROLES = {"db": 4, "app": 6, "web": 10, "lb": 2, "cache": 2, "mail": 2, "dns": 2, "mon": 1, "ci": 1}
SHOP = ("db", "app", "web", "lb")
OLD, NEW, BASE = "shop/tags/r41", "shop/tags/r42", "base/tags/r17"
FAILED, HELD, LATE = "app04.example.com", "db03.example.com", "cache02.example.com"
ROLLOUT = RolloutId("20261120T130000Z-3f1c")
EVERY, HOUR, DAY = 1800.0, 3600.0, 86400.0
FILE, PLACE, LINE = "/etc/shop.conf", "app/manifests/pool.pp", 7
CAUSE = FailureCause.of_resource(
    {"resource": f"File[{FILE}]", "file": f"/x/modules/{PLACE}", "line": LINE},
    "Could not set 'file' on ensure: No space left on device",
)


def main() -> None:
    """Take all pictures, or one view in six forms, into the directory that is named."""
    target, views = Path(sys.argv[1]), sys.argv[2:]
    pictures = [
        (f"{width}-{'dark' if dark else 'light'}.png", view, width, 1000, dark)
        for view in views
        for width in WIDTHS
        for dark in (False, True)
    ]
    options = webdriver.ChromeOptions()
    for argument in (*ARGUMENTS, "--hide-scrollbars"):
        options.add_argument(argument)
    options.binary_location = PROGRAM
    with tempfile.TemporaryDirectory() as directory:
        site = Site(Path(directory))
        fill(site)
        driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
        try:
            with Served(site) as served:
                browser = Browser(driver, served)
                for name, path, width, height, dark in pictures or PICTURES:
                    picture = take(browser, path, width, height, dark=dark)
                    (target / name).write_bytes(picture)
                    print(f"{target / name}: {width}x{height}")
                driver.get("about:blank")
        finally:
            driver.quit()


def take(browser: Browser, path: str, width: int, height: int, *, dark: bool) -> bytes:
    """Return a picture of a view."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    command = browser.driver.execute_cdp_cmd
    command("Emulation.setDeviceMetricsOverride", size)
    command("Emulation.setEmulatedMedia", {"features": [scheme]})
    browser.go(path)
    browser.until("return document.readyState === 'complete'")
    return b64decode(command("Page.captureScreenshot", {"format": "png"})["data"])


def fill(site: Site) -> None:
    """Have the nodes publish their states, their inventory and their runs of two weeks."""
    now = site.now()
    nodes = list(named(ROLES))
    until = show_time(datetime.fromtimestamp(now + 3 * HOUR, UTC))
    hold = {"owner": "alice", "reason": "a disk is replaced", "since": "", "until": until}
    runs: list[RunRow] = []
    for number, (node, role) in enumerate(nodes):
        ended = now - EVERY * (number + 1) / (len(nodes) + 1)
        if node in (HELD, LATE):
            ended -= 3 * HOUR
        held: dict[str, Any] = {"state": "on hold", "holds": [hold]} if node == HELD else {}
        past = [*history(node, role, ended)]
        site.tell(status(node, ended, last_run=to_record(past[0].end), **held))
        runs += (RunRow.of_summary(node, one) for one in past)
    summarise(site, *runs)
    kicked = dict(pairwise(SHOP))
    site.list_(
        *(
            entry(
                node,
                at=now - 60,
                roles=(role,),
                facts=facts(node),
                kicks=(f'role="{kicked[role]}"',) if role in kicked else (),
            )
            for node, role in nodes
        )
    )
    rollout(site, [(node, role) for node, role in nodes if role in SHOP and node != HELD])


def named(roles: dict[str, int]) -> Iterator[tuple[str, str]]:
    """Yield the nodes with their roles."""
    for role, count in roles.items():
        for number in range(1, count + 1):
            yield f"{role}{number:02}.example.com", role


def release(role: str, at: float) -> str:
    """Return the release that a node of a role has at a time: a new one three days apart."""
    begun = datetime(2026, 11, 20, 13, tzinfo=UTC).timestamp()
    return f"shop/tags/r{42 + int((at - begun) // (3 * DAY))}" if role in SHOP else BASE


def history(node: str, role: str, ended: float) -> Iterator[RunSummary]:
    """Yield the runs of two weeks, the newest first: some change, those of `FAILED` now fail."""
    for step in range(int(14 * DAY / EVERY)):
        at = ended - EVERY * step
        of, before = release(role, at), release(role, at - EVERY)
        bad = node == FAILED and of == NEW
        drift = (sum(map(ord, node)) * 31 + step * 53) % 397 == 0
        more: dict[str, Any] = {}
        if bad:
            failing = {"failing_since": ended - EVERY, "failed_runs": 2 - step}
            more = {"outcome": Outcome.FAILED, "category": Category.RESOURCES_FAILED, **failing}
            more |= {"reason": "1 resource failed", "failure_cause": CAUSE}
        elif of != before or drift:
            more = {"outcome": Outcome.CHANGED, "corrective_change": drift}
        if more:
            result = ResourceResult.FAILED if bad else ResourceResult.CHANGED
            part = a_part(f"File[{FILE}]", status=result, file=PLACE, line=LINE)
            more["resources"] = (replace(part, corrective_change=drift and not bad),)
        yield a_summary(at, release=of, run_interval=EVERY, **more)


def facts(node: str) -> dict[str, Any]:
    """Return facts that a page can show."""
    return {
        "os": {"family": "Debian", "name": "Debian", "release": {"full": "12.8", "major": "12"}},
        "processors": {"count": 4, "isa": "x86_64"},
        "memory": {"system": {"total": "15.61 GiB", "used": "6.02 GiB"}},
        "networking": {"fqdn": node, "ip": "192.0.2.17", "primary": "eth0"},
        "kernelrelease": "6.1.0-27-amd64",
        "timezone": "UTC",
        "virtual": "kvm",
    }


def rollout(site: Site, nodes: list[tuple[str, str]]) -> None:
    """Write the journal of the rollout of `NEW`: group by group, one node failed."""
    groups = [tuple(NodeName(node) for node, own in nodes if own == role) for role in SHOP]
    options = RolloutOptions(
        delivery=Delivery(release=ReleasePath(NEW)),
        canary=1,
        max_failures=Amount(number=1, percent=False),
    )
    at = datetime(2026, 11, 20, 13, tzinfo=UTC).timestamp()
    began = RolloutBegan(
        id=ROLLOUT, caller="choria=alice", groups=tuple(groups), options=options, title="shop"
    )
    journal = Journals(site.directory / "rollouts").begin(began, at=moment(at))
    releases = LastRunsReported(durations={}, releases={OLD: len(nodes)})
    journal.append(releases, at=moment(at + 2))
    for step, group in enumerate(groups, 1):
        for number, node in enumerate(group):
            run = NodeRun(step, node)
            begun = at + 5 + 9 * number
            journal.append(NodeRunsStarted(node_runs=(run,)), at=moment(begun))
            bad = node == FAILED
            end = NodeRunEnded(
                node_run=run,
                result=NodeResult.FAILED if bad else NodeResult.SUCCEEDED,
                outcome="failed" if bad else "changed",
                run=run_id(begun),
                reason=f"1 resource failed: {CAUSE.resource} ({CAUSE.place}): {CAUSE.error}" * bad,
            )
            journal.append(end, at=moment(begun + 8 + number % 3))
        at += 9 * len(group) + 6
    journal.append(
        RolloutEnded(ending=RolloutEnding.DONE, reason="", still_held={}), at=moment(at + 3)
    )
    journal.close()


def moment(at: float) -> str:
    """Return a time as journals have it."""
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%S.%fZ}"


if __name__ == "__main__":
    main()
