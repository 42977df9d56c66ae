"""Reading the runs of another node: from the bus, and by `history NODE`."""

import time
from pathlib import Path

import pytest

from localpuppet.base.errors import IntegrityError
from localpuppet.base.formats.names import NodeName
from localpuppet.fleet.history.history_follower import read_runs
from localpuppet.fleet.history.history_records import (
    RUNS,
    HistoryDay,
    RunSummary,
    day_of,
    history_key,
)
from localpuppet.fleet.history.node_history import DayLog
from localpuppet.node.runs.run import Outcome, RefusalKind
from tests.doubles.identities import Person, person, verifier
from tests.doubles.memory_store import MemoryKeyValue, MemoryStore
from tests.doubles.ports import FakeClock
from tests.fleet.make import a_summary
from tests.rigs.fleet import Fleet
from tests.rigs.waiting import wait_until

WEB, DB = person("web01.example.com"), person("db01.example.com")
NODE = NodeName(WEB.name)
NOW = FakeClock().now().timestamp()
DAY = 86400.0


async def put(kv: MemoryKeyValue, signer: Person, *records: RunSummary) -> None:
    day = day_of(records[0].at)
    payload = HistoryDay(node=NODE, day=day, records=records, dropped=0).to_payload()
    await kv.put(history_key(NODE, RUNS.kind, day), signer.signer.sign(payload, RUNS.message))


async def test_the_runs_of_all_days_are_read_the_newest_first(tmp_path: Path) -> None:
    kv = MemoryKeyValue(MemoryStore())
    assert await read_runs(kv, NODE, verifier(tmp_path, WEB), now=NOW) == ([], "")
    old, first, second = a_summary(NOW - 3 * DAY), a_summary(NOW - 60), a_summary(NOW)
    await put(kv, WEB, old)
    await put(kv, WEB, first, second)
    assert await read_runs(kv, NODE, verifier(tmp_path, WEB), now=NOW) == ([second, first, old], "")


async def test_what_another_node_signed_is_rejected(tmp_path: Path) -> None:
    kv = MemoryKeyValue(MemoryStore())
    await put(kv, DB, a_summary(NOW))
    with pytest.raises(IntegrityError, match=DB.name):
        await read_runs(kv, NODE, verifier(tmp_path, WEB, DB), now=NOW)


async def test_a_reinstalled_node_has_the_runs_since_its_new_key(tmp_path: Path) -> None:
    kv, before = MemoryKeyValue(MemoryStore()), person(WEB.name)
    last = a_summary(NOW - DAY)
    await put(kv, before, a_summary(NOW - 2 * DAY))
    await put(kv, WEB, last)
    runs, problem = await read_runs(kv, NODE, verifier(tmp_path, WEB), now=NOW)
    assert runs == [last]
    assert problem.startswith("days before are not read: ")
    await put(kv, before, a_summary(NOW))
    with pytest.raises(IntegrityError):  # unknown, and not how it was before
        await read_runs(kv, NODE, verifier(tmp_path, WEB), now=NOW)


def test_history_shows_the_runs_of_another_node(any_fleet: Fleet) -> None:
    a, b = any_fleet.add("a", "b")
    now = time.time()
    failed = a_summary(now - 60, outcome=Outcome.FAILED, reason="File[/etc/motd]: denied")
    refused = a_summary(now, outcome=None, refusal=RefusalKind("on_hold"), times=3)
    for summary in (failed, refused):
        DayLog(b.root / "var", RUNS).append(NodeName(b.name), summary)
    any_fleet.start()

    def listed() -> bool:
        return a.run("history", b.name).code == 0

    wait_until(listed, lambda: a.run("history", b.name).err)
    shown = a.run("history", b.name, "-n", "5")
    assert f"{b.name}: 2 runs on the bus" in shown.out
    (row,) = (line for line in shown.out.splitlines() if failed.run in line)
    assert ("failed" in row, "File[/etc/motd]: denied" in row) == (True, True)
    assert ("3 times" in shown.out, refused.run in shown.out) == (True, False)
    trusted = a.root / "trusted"
    (trusted / "gone.example.com.pem").write_bytes((trusted / f"{b.name}.pem").read_bytes())
    both = a.run("history", b.name, "gone.example.com", "--json", code=1)
    (first, second) = both.json["histories"][b.name]
    assert (first["refusal"], second["outcome"]) == ("on_hold", "failed")
    assert "no run of it" in both.json["problems"]["gone.example.com"]
    assert "bus" in a.run("history", "gone.example.com").err
