"""One history of a fleet is the same in `nodes`, `history`, the dashboard and PuppetDB's API."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.rigs.fleet import Fleet
from tests.rigs.member import Member
from tests.rigs.waiting import wait_until
from tests.web.dashboard.test_command import Page
from tests.web.puppetdb.clients.replay import exchange
from tests.web.puppetdb.served import V4

CODE = """
class site($mode) {
  case $mode {
    'changed': { notify { 'hello': } }
    'failed': { exec { 'check': command => '/bin/false' } }
    default: { }
  }
}
"""
# Node → the modes of its runs.
RUNS = {
    "good": ["changed", "unchanged"],
    "failed": ["unchanged", "failed"],
    "noop": ["unchanged", "noop"],
    "died": ["unchanged", "failed", "failed"],
    "gone": ["failed"],
    "held": ["unchanged"],
}
OUTCOMES = {
    "good": "unchanged",
    "failed": "failed",
    "noop": "noop pending",
    "died": "failed",
    "held": "unchanged",
}
STATES = {"good": "idle", "failed": "idle", "noop": "idle", "died": "unresponsive"}
STATES["held"] = "on hold"
STATUS = {"unchanged": "unchanged", "noop pending": "unchanged", "failed": "failed"}


def prepared(fleet: Fleet, name: str) -> Member:
    member = fleet.add_one(name, puppet=True)
    member.node.write("modules/app/trunk/site/manifests/init.pp", CODE)
    member.node.write("modules/app/trunk/manifest.yaml", "modulepath: []\n")
    return member


def apply(member: Member, mode: str) -> None:
    classes = {"site": {"mode": "changed" if mode == "noop" else mode}}
    member.node.write("input.yaml", json.dumps({"app": "app/trunk", "classes": classes}))
    done = member.run("apply", *(["--noop"] if mode == "noop" else []))
    assert done.code == (1 if mode == "failed" else 0), done.out + done.err


@pytest.fixture
def viewer(fleet: Fleet) -> Iterator[Member]:
    """A node without an agent that sees what the others did; nothing of it was watched."""
    members = {name: prepared(fleet, name) for name in RUNS}
    viewer = fleet.add_one("viewer")
    viewer.node.write("policies/puppet.policy", "policy default deny\nallow\t*\tforget\t*\t*\n")
    for member in members.values():
        member.start()
    fleet.present(*members.values())
    for name, modes in RUNS.items():
        for mode in modes:
            apply(members[name], mode)
    assert members["held"].run("disable", "-m", "migration").code == 0
    for name in ("died", "gone"):
        members[name].stop()
    assert viewer.run("inventory", "forget", "--yes", members["gone"].name).code == 0
    yield viewer
    viewer.node.end()


def short(name: str) -> str:
    return name.partition(".")[0]


def test_views_agree_about_each_node(viewer: Member) -> None:
    def nodes() -> dict[str, Any]:
        listed = viewer.run("nodes", "--json").json["nodes"]
        return {short(row["node"]): row for row in listed}

    def seen(rows: dict[str, Any]) -> dict[str, tuple[str, str]]:
        return {name: (row["state"], row["outcome"]) for name, row in rows.items()}

    wanted = {name: (STATES[name], OUTCOMES[name]) for name in OUTCOMES}
    wait_until(lambda: seen(nodes()) == wanted, lambda: str(seen(nodes())))
    command = nodes()
    page = Page(viewer, "--puppetdb", "127.0.0.1:0")

    def shown() -> dict[str, Any]:
        rows = json.loads(page.get("/nodes.json"))["nodes"]
        return {short(row["node"]): row for row in rows}

    wait_until(lambda: seen(shown()) == wanted, lambda: str(seen(shown())))
    for name, row in shown().items():
        mine = command[name]
        for key in ("release", "finished_at"):
            assert row[key] == mine[key], (name, key)
        told = viewer.run("history", "--node", f"{name}.example.com", "--json").json
        newest = told["histories"][f"{name}.example.com"][0]
        assert row["run"] == newest["run"], name
        assert row["release"] == newest["release"], name

    def ask(path: str) -> Any:
        status, rows = exchange(f"http://127.0.0.1:{page.api_port}", "GET", f"{V4}/{path}")
        assert status == 200, rows
        return rows

    def statuses() -> dict[str, str]:
        rows = ask("nodes")
        return {short(row["certname"]): row["latest_report_status"] for row in rows}

    expected = {name: STATUS[outcome] for name, outcome in OUTCOMES.items()}
    wait_until(lambda: statuses() == expected, lambda: str(statuses()))
    reports = ask('reports?query=["=","latest_report?",true]')
    assert {short(one["certname"]): one["status"] for one in reports} == expected
    for report in reports:
        name = short(report["certname"])
        assert report["end_time"][:19] == command[name]["finished_at"][:19], name
    (failure,) = json.loads(page.get("/failures.json"))["failures"]
    assert sorted(map(short, failure["nodes"])) == ["died", "failed"]
