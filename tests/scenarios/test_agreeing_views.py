"""One history of a fleet is the same in commands, metrics, the dashboard and PuppetDB's API."""

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from localpuppet.base.formats.names import SignerName
from localpuppet.fleet.trust.key_files import TrustedKeys
from tests.rigs.fleet import Fleet
from tests.rigs.member import Member
from tests.rigs.waiting import wait_until
from tests.web.dashboard.test_command import Page
from tests.web.puppetdb.clients.replay import exchange
from tests.web.puppetdb.served import V4

# The second one is rolled back.
RELEASES = ("tags/r1", "tags/r2")
CODE = """
class app($mode) {
  case $mode {
    'changed': { notify { 'hello': } }
    'failed': { exec { 'check': command => '/bin/false' } }
    default: { }
  }
}
"""
# Node → the modes of its runs.
RUNS = {
    "good": ["unchanged"],
    "failed": ["failed"],
    "noop": ["noop"],
    "died": ["unchanged", "failed", "failed"],
    "gone": ["failed"],
    "held": ["unchanged"],
    "rebuilt": ["failed"],
    "back": ["unchanged"],
}
OUTCOMES = {
    "good": "unchanged",
    "failed": "failed",
    "noop": "noop pending",
    "died": "failed",
    "held": "unchanged",
    "rebuilt": "changed",
    "back": "unchanged",
}
STATES = dict.fromkeys(OUTCOMES, "idle") | {"died": "unresponsive", "held": "on hold"}
STATUS = {"noop pending": "unchanged"}
# Facts of a last run that each list has.
SHARED = ("run", "release", "failed_runs", "reason")


def prepared(fleet: Fleet, name: str) -> Member:
    member = fleet.add_one(name, puppet=True)
    for release in RELEASES:
        member.node.release(release.removeprefix("tags/"), CODE)
    return member


def apply(member: Member, mode: str, release: str = RELEASES[0]) -> None:
    member.node.want(release, mode="changed" if mode == "noop" else mode)
    done = member.run("apply", *(["--noop"] if mode == "noop" else []))
    assert done.code == (1 if mode == "failed" else 0), done.out + done.err


def reinstall(fleet: Fleet, member: Member) -> None:
    """Let a node lose its state and its key; the others trust the new one."""
    member.stop()
    kept = (member.root / "var/cache/puppet.json").read_text()
    shutil.rmtree(member.root / "var")
    member.node.write("var/cache/puppet.json", kept, 0o600)
    (member.root / "var/cache").chmod(0o700)
    key = member.key.make(replace=False).public_key()
    for other in fleet.members:
        if other is not member:
            (other.root / "trusted" / f"{member.name}.pem").unlink()
            TrustedKeys(other.root / "trusted").pin(SignerName(member.name), key)
    member.start()
    fleet.present(member)


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
    reinstall(fleet, members["rebuilt"])
    apply(members["rebuilt"], "changed")
    apply(members["back"], "failed", RELEASES[1])
    members["back"].run("rollback", code=0)
    members["back"].run("apply", code=0)
    members["held"].run("disable", "-m", "migration", code=0)
    for name in ("died", "gone"):
        members[name].stop()
    viewer.run("inventory", "forget", "--yes", members["gone"].name, code=0)
    yield viewer
    viewer.node.end()


def short(name: str) -> str:
    return name.partition(".")[0]


def histories(viewer: Member, name: str) -> list[dict[str, Any]]:
    told = viewer.run("history", f"{name}.example.com", "--json")
    listed: list[dict[str, Any]] = told.json["histories"][f"{name}.example.com"]
    return listed


def seconds(time: str | None) -> float | None:
    return None if time is None else datetime.fromisoformat(time).timestamp()


def metrics_of(member: Member) -> dict[str, float]:
    """Return the metrics of a node by name and labels."""
    lines = (member.node.state / "metrics.prom").read_text().splitlines()
    samples = (line.rpartition(" ") for line in lines if line.startswith("localpuppet_"))
    return {name.removeprefix("localpuppet_"): float(value) for name, _, value in samples}


def check_own(member: Member, seen: dict[str, Any]) -> None:
    """Check that status and metrics of a node have what `nodes` on another node shows of it."""
    name, last = short(member.name), seen["last_run"]
    own = member.run("status", "--json").json["run"]
    assert (own["id"], own["release"]) == (last["run"], last["release"]), name
    assert (own["outcome"], own["noop"]) == (last["outcome"], last["noop"]), name
    assert seconds(own["finished_at"]) == pytest.approx(last["finished_at"]), name
    metrics = metrics_of(member)
    assert metrics[f'last_run_outcome{{outcome="{last["outcome"]}"}}'] == 1, name
    assert metrics["last_run_noop"] == last["noop"], name
    ended = metrics["last_run_timestamp_seconds"]
    assert ended == pytest.approx(last["finished_at"], abs=0.001), name
    assert (metrics["holds"] > 0) is (seen["state"] == "on hold"), name
    assert any(key.startswith("rolled_back") for key in metrics) is (name == "back"), name


def test_views_agree_about_each_node(viewer: Member, fleet: Fleet) -> None:
    members = {short(member.name): member for member in fleet.members}

    def nodes() -> dict[str, Any]:
        done = viewer.run("nodes", "--json", code=0)
        listed = done.json["nodes"]
        return {short(row["node"]): row for row in listed}

    def seen(rows: dict[str, Any]) -> dict[str, tuple[str, str]]:
        return {name: (row["state"], row["outcome"]) for name, row in rows.items()}

    wanted = {name: (STATES[name], OUTCOMES[name]) for name in OUTCOMES}
    wait_until(lambda: seen(nodes()) == wanted, lambda: str(seen(nodes())))
    # The run before its last one ended alike.
    newest_run = members["back"].run("status", "--json").json["run"]["id"]
    wait_until(lambda: nodes()["back"]["last_run"]["run"] == newest_run, lambda: str(nodes()))
    command = nodes()
    page = Page(viewer, "--puppetdb", "127.0.0.1:0")

    def shown() -> dict[str, Any]:
        rows = json.loads(page.get("/nodes.json"))["nodes"]
        return {short(row["node"]): row for row in rows}

    wait_until(lambda: seen(shown()) == wanted, lambda: str(seen(shown())))
    wait_until(lambda: shown()["back"]["run"] == newest_run, lambda: str(shown()))
    for name, row in shown().items():
        mine = command[name]
        last = mine["last_run"]
        newest, *_ = histories(viewer, name)
        assert {key: newest[key] for key in last} == last, name
        for key in ("release", "finished_at"):
            assert row[key] == mine[key], (name, key)
        for key in SHARED:
            assert row[key] == last[key], (name, key)
        cause = last["failure_cause"] or {"error": "", "resource": "", "place": ""}
        assert {key: row[key] for key in cause} == cause, name
        assert seconds(row["failing_since"]) == last["failing_since"], name
        assert seconds(row["finished_at"]) == last["finished_at"], name
        runs = json.loads(page.get(f"/runs.json?node={name}.example.com"))["runs"]
        assert len(runs) == len(histories(viewer, name)), name
        assert {key: runs[0][key] for key in ("run", "release")} == {
            key: last[key] for key in ("run", "release")
        }, name
        assert runs[0]["outcome"] == row["outcome"], name
        ended = seconds(runs[0]["finished_at"])
        assert ended == pytest.approx(last["finished_at"], abs=0.001), name
        check_own(members[name], mine)
    assert len(histories(viewer, "rebuilt")) == 1
    assert [command[name]["last_run"]["failed_runs"] for name in ("died", "rebuilt")] == [2, 0]
    assert command["back"]["release"] == command["back"]["rollback"]["release"] == "app/tags/r1"
    (back,) = json.loads(page.get("/nodes.json?is=rolled+back"))["nodes"]
    assert short(back["node"]) == "back"

    def ask(path: str) -> Any:
        status, rows = exchange(f"http://127.0.0.1:{page.api_port}", "GET", f"{V4}/{path}")
        assert status == 200, rows
        return rows

    def statuses() -> dict[str, str]:
        rows = ask("nodes")
        return {short(row["certname"]): row["latest_report_status"] for row in rows}

    expected = {name: STATUS.get(outcome, outcome) for name, outcome in OUTCOMES.items()}
    wait_until(lambda: statuses() == expected, lambda: str(statuses()))
    reports = ask('reports?query=["=","latest_report?",true]')
    assert {short(one["certname"]): one["status"] for one in reports} == expected
    for report in reports:
        name = short(report["certname"])
        assert report["end_time"][:19] == command[name]["finished_at"][:19], name
        release, commit = command[name]["release"], report["code_id"]
        assert report["configuration_version"] == (commit or release), name
        assert report["noop_pending"] is (OUTCOMES[name] == "noop pending"), name
    releases = json.loads(page.get("/releases.json"))["releases"]
    assert {row["release"]: row["count"] for row in releases} == Counter(
        row["release"] for row in command.values()
    )
    (failure,) = json.loads(page.get("/failures.json"))["failures"]
    assert sorted(map(short, failure["nodes"])) == ["died", "failed"]
