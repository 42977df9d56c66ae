"""The history of a real node: each run and each refusal is recorded, and reaches the bus."""

import asyncio
import json
import stat
import zlib
from pathlib import Path
from typing import Any

from localpuppet.fleet.bus.key_value import KeyValueEntry
from localpuppet.fleet.bus.sqlite_bus import open_sqlite
from localpuppet.fleet.history.history_records import HistoryKind
from localpuppet.fleet.trust.signing import claimed_payload
from localpuppet.node.cli.command import user
from tests.rigs.node import Node

CANARY = "canary-90210"
NAME = "web01.example.com"
PREFIX = f"/localpuppet/history/{NAME}/"
MANIFEST = f"""
file {{ '/tmp/absent/file': content => '{CANARY}' }}
exec {{ 'echo {CANARY}': command => '/bin/echo {CANARY}' }}
notify {{ 'hello': }}
notify {{ 'skipped': require => File['/tmp/absent/file'] }}
"""


def _local(node: Node) -> list[dict[str, Any]]:
    files = sorted((node.state / "history/runs").glob("[0-9]*"))
    assert all(stat.S_IMODE(file.stat().st_mode) == 0o600 for file in files)
    return [record for file in files for record in _records(file.read_bytes())]


def _records(payload: bytes) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = json.loads(zlib.decompress(payload))["records"]
    return records


def _on_bus(node: Node, kind: HistoryKind = HistoryKind.RUNS) -> list[dict[str, Any]]:
    listed = asyncio.run(_listing(node.state / "bus.sqlite", kind))
    days = (_records(claimed_payload(one.value)) for one in listed)
    return [record for day in sorted(days, key=_time_of_first) for record in day]


def _time_of_first(day: list[dict[str, Any]]) -> float:
    first = day[0]
    return float(first["finished_at"] if "finished_at" in first else first["at"])


async def _listing(path: Path, kind: HistoryKind) -> tuple[KeyValueEntry, ...]:
    kv = await open_sqlite(path, timeout=10)
    try:
        return (await kv.list(f"{PREFIX}{kind}/")).entries
    finally:
        await kv.close()


def test_each_run_and_each_refusal_is_in_the_history_of_a_node(node: Node) -> None:
    node.app("notify { 'hello': }")
    node.run("apply", code=0)
    assert not (node.state / "history").exists()  # without a bus no node asks for it
    bus = str(node.state / "bus.sqlite")
    node.settings(node=NAME, bus="sqlite", buses={"sqlite": {"path": bus}})
    node.app(MANIFEST)
    node.run("apply", code=1)
    node.run("apply", "--noop", code=0)
    node.app("this does not compile")
    node.run("apply", code=1)
    node.run("disable", "-m", CANARY, code=0)
    assert node.run("apply").code != 0
    assert node.run("apply").code != 0
    found = _local(node)
    assert CANARY not in json.dumps(found)
    assert [(one["outcome"], one["category"], one["refusal"]) for one in found] == [
        ("changed", "", None),
        ("failed", "resources_failed", None),
        ("unchanged", "noop_pending", None),
        ("failed", "no_report", None),
        (None, "", "on_hold"),
    ]
    failed, noop, refused = found[1], found[2], found[4]
    assert [(one["type"], one["title"], one["status"]) for one in failed["resources"]] == [
        ("File", "/tmp/absent/file", "failed"),
        ("Exec", "…", "changed"),
        ("Notify", "hello", "changed"),
        ("Notify", "skipped", "skipped"),
    ]
    assert failed["failure_cause"]["resource"] == "File[/tmp/absent/file]"
    assert (failed["counts"]["failed"], failed["cause"]) == (1, "manual")
    assert (noop["noop"], {one["status"] for one in noop["resources"]}) == (True, {"would_change"})
    assert (refused["times"], refused["reason"]) == (2, "the node is on hold")
    # Without an agent, a process publishes after the run; otherwise the agent does.
    node.wait_until(lambda: _on_bus(node) == found)
    agent_settings = {"agent": {"run_interval": "2s"}, "socket": str(node.root / "a.sock")}
    node.settings(node=NAME, bus="sqlite", buses={"sqlite": {"path": bus}}, **agent_settings)
    node.run("enable", code=0)
    agent = node.start("agent")
    node.wait_until(lambda: len(_on_bus(node)) > len(found))
    agent.kill()
    node.finish(agent)
    last = _on_bus(node)[-1]
    assert (last["cause"], last["category"]) == ("timer", "no_report")


def test_holds_of_users_of_the_node_itself_are_in_its_audit_records(node: Node) -> None:
    bus = str(node.state / "bus.sqlite")
    node.settings(node=NAME, bus="sqlite", buses={"sqlite": {"path": bus}})
    for words in (
        ("disable", "-m", "disk", "--for", "2h"),
        ("enable",),
        ("enable",),  # without a hold
        ("disable", "-m", "change 42", "--owner", "release-bot"),
        ("enable", "--all-owners"),
    ):
        node.run(*words, code=0)

    def published() -> list[tuple[str, str, str]]:
        records = _on_bus(node, HistoryKind.AUDIT)
        return [(one["caller"], one["action"], one["subject"]) for one in records]

    me = f"local={user()}"
    mine = [(me, "disable", "disk, for 2h"), (me, "enable", "")]
    owner = "owner release-bot"
    bots = [(me, "disable", f"change 42, {owner}"), (me, "enable", owner)]
    node.wait_until(lambda: published() == mine + bots)
